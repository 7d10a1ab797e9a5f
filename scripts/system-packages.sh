#!/bin/sh
# Servers and tools that come as system packages. As root on Debian or Ubuntu they are installed by name;
# otherwise what is there is used, and what is missing is named: the tests that need it skip with that reason.
set -u
missing=""
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || command -v rabbitmq-server >/dev/null || missing="$missing rabbitmq-server"
command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing:$missing"
    # The packaged service must not start: every run starts its own nodes on its own ports.
    policy=/usr/sbin/policy-rc.d
    made_policy=""
    if [ ! -e "$policy" ]; then printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod +x "$policy" && made_policy=yes; fi
    apt-get update -qq >/dev/null
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    result=$?
    if [ -n "$made_policy" ]; then rm -f "$policy"; fi
    exit $result
fi
echo "not installed, and not root on Debian or Ubuntu:$missing"
echo "the tests that need them will be skipped, unless FLYBALL_TEST_AMQP_URL or FLYBALL_TEST_KAFKA_URL name a server"
