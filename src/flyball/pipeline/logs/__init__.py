"""The logs between the parts: names, entries, watermark marks, fill levels, totals, and their writer."""
