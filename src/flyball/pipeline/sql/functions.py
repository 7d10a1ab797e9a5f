"""The functions that users may call in expressions: what they take, what they give, and their Spark SQL.

Nothing else can be called: no function that reaches outside (`java_method`, `input_file_name`), that differs from
call to call (`rand`, `now`: a replay must give the same rows) or that fails on some values where null will do.
"""

from __future__ import annotations

from dataclasses import dataclass

NUMBER, STRING, BOOLEAN, ANY = "number", "string", "boolean", "any"


@dataclass(frozen=True, slots=True)
class Function:
    """`takes` are the kinds of the arguments; `result` is a type, or "same": that of the arguments.

    The last `optional` arguments may be left out; with `repeats` the last one may come again and again.
    """

    takes: tuple[str, ...]
    result: str
    sql: str
    optional: int = 0
    repeats: bool = False

    def usage(self, name: str) -> str:
        """
        >>> FUNCTIONS["round"].usage("round")
        'round(number [, number])'
        """
        fixed = len(self.takes) - self.optional
        text = ", ".join(self.takes[:fixed])
        if self.optional:
            text += f" [, {', '.join(self.takes[fixed:])}]"
        return f"{name}({text}{', …' if self.repeats else ''})"


def _double(name: str, sql: str | None = None) -> dict[str, Function]:
    """A function of one number that gives a double."""
    return {name: Function((NUMBER,), "double", sql or f"{name}({{0}})")}


FUNCTIONS: dict[str, Function] = {
    "lower": Function((STRING,), "string", "lower({0})"),
    "upper": Function((STRING,), "string", "upper({0})"),
    "trim": Function((STRING,), "string", "trim({0})"),
    "length": Function((STRING,), "bigint", "CAST(length({0}) AS BIGINT)"),
    "concat": Function((STRING, STRING), "string", "concat({all})", repeats=True),
    "substring": Function((STRING, NUMBER, NUMBER), "string", "substring({all})", optional=1),
    "replace": Function((STRING, STRING, STRING), "string", "replace({all})"),
    "split_part": Function(
        # Spark fails on part 0; there is none
        (STRING, STRING, NUMBER),
        "string",
        "split_part({0}, {1}, nullif({2}, 0))",
    ),
    "startswith": Function((STRING, STRING), "boolean", "startswith({all})"),
    "endswith": Function((STRING, STRING), "boolean", "endswith({all})"),
    "contains": Function((STRING, STRING), "boolean", "contains({all})"),
    # Spark's abs fails on the smallest bigint
    "abs": Function((NUMBER,), "same", "if({0} < 0, try_subtract(0, {0}), {0})"),
    "round": Function((NUMBER, NUMBER), "double", "round(CAST({0} AS DOUBLE){rest})", optional=1),
    # Spark's give a bigint; doubles from 2⁵³ on are whole anyway
    **_double("floor", "if(abs(CAST({0} AS DOUBLE)) < 9e15D, CAST(floor({0}) AS DOUBLE), CAST({0} AS DOUBLE))"),
    **_double("ceil", "if(abs(CAST({0} AS DOUBLE)) < 9e15D, CAST(ceil({0}) AS DOUBLE), CAST({0} AS DOUBLE))"),
    **_double("sqrt"),
    **_double("ln"),
    **_double("log10"),
    **_double("exp"),
    "power": Function((NUMBER, NUMBER), "double", "power({all})"),
    "greatest": Function((ANY, ANY), "same", "greatest({all})", repeats=True),
    "least": Function((ANY, ANY), "same", "least({all})", repeats=True),
    "coalesce": Function((ANY, ANY), "same", "coalesce({all})", repeats=True),
    "nullif": Function((ANY, ANY), "same", "nullif({all})"),
    "if": Function((BOOLEAN, ANY, ANY), "same", "if({all})"),
}

# How the parser names some of them
ALIASES = {
    "ceiling": "ceil",
    "pow": "power",
    "nvl": "coalesce",
    "ifnull": "coalesce",
    "substr": "substring",
    "starts_with": "startswith",
    "ends_with": "endswith",
}

AGGREGATES: dict[str, str] = {
    "max": "max({0})",
    "min": "min({0})",
    "avg": "avg({0})",
    "sum": "sum({0})",
    "count": "count({0})",
    "stddev": "stddev({0})",
}
"""What a rule can do with the events of a window."""
