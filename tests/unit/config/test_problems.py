"""Broken configurations, and the exact errors that a user reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_client.config.loader import load_config
from broker_client.errors import ConfigError

ROOT_KEYS = (
    "allowed: defaults, encryption, node, profile, publications, recovery, redeliveries, "
    "schedules, server, shovels, subscriptions, tracing, vhosts"
)

BROKEN: dict[str, tuple[str, list[str]]] = {
    "vhost instead of vhosts": (
        """
        vhost:
          /: {}
        """,
        [
            "app.yaml: vhosts: No vhosts specified",
            f"app.yaml:1: vhost: unknown key (did you mean 'vhosts'?; {ROOT_KEYS})",
        ],
    ),
    "empty file": ("", ["app.yaml: vhosts: No vhosts specified"]),
    "not a mapping": ("[1, 2]", ["app.yaml:1: must be a mapping with the key 'vhosts'"]),
    "not yaml": (
        """
        vhosts:
          /: {queues: [a
        """,
        [
            "app.yaml:3: not valid YAML: expected ',' or ']', but got '<stream end>'; a bracket is "
            "not closed, a ',' is missing, or a text with brackets lacks its quotes",
        ],
    ),
    "variable in braces without quotes": (
        """
        vhosts:
          /: {connection: ${URL}}
        """,
        [
            "app.yaml:2: not valid YAML: expected ',' or '}', but got '{'; "
            "between { } or [ ], put ${NAME} in quotes",
        ],
    ),
    "camel case from rascal": (
        """
        vhosts:
          /:
            queues:
              q:
                options: {messageTtl: 10s}
        """,
        [
            "app.yaml:5: vhosts./.queues.q.options.messageTtl: unknown key: messageTtl is written "
            "message_ttl here",
        ],
    ),
    "bare duration": (
        """
        vhosts:
          /:
            exchanges: [e]
            publications:
              p: {exchange: e, timeout: 10}
            connection:
              url: amqp://h
              retry: {min: 100, max: soon}
        """,
        [
            "app.yaml:5: vhosts./.publications.p.timeout: 10 has no unit: write 10s or 10ms",
            "app.yaml:8: vhosts./.connection.retry.min: 100 has no unit: write 100s or 100ms",
            "app.yaml:8: vhosts./.connection.retry.max: 'soon' is not a duration; "
            "write 250ms, 10s, 2m or 1h",
        ],
    ),
    "unknown references": (
        """
        vhosts:
          /:
            exchanges: [orders]
            queues: [fulfil]
            bindings:
              - order -> fulfil
              - {source: orders, destination: fulfill}
            publications:
              p: {exchange: order}
              q: {queue: audit}
            subscriptions:
              s:
                queue: fulfill
                recovery: pateint
        recovery:
          patient:
            - strategy: forward
              publication: pp
        """,
        [
            "app.yaml:6: vhosts./.bindings[0]: unknown exchange 'order' "
            "(did you mean 'orders'?; allowed: orders)",
            "app.yaml:7: vhosts./.bindings[1].destination: unknown queue 'fulfill' "
            "(did you mean 'fulfil'?; allowed: fulfil)",
            "app.yaml:9: vhosts./.publications.p.exchange: unknown exchange 'order' "
            "(did you mean 'orders'?; allowed: '', orders)",
            "app.yaml:10: vhosts./.publications.q.queue: unknown queue 'audit' (allowed: fulfil)",
            "app.yaml:13: vhosts./.subscriptions.s.queue: unknown queue 'fulfill' "
            "(did you mean 'fulfil'?; allowed: fulfil)",
            "app.yaml:14: vhosts./.subscriptions.s.recovery: unknown recovery 'pateint' "
            "(did you mean 'patient'?; allowed: patient)",
            "app.yaml:18: recovery.patient[0].publication: unknown publication 'pp' "
            "(did you mean 'p'?; allowed: p, q)",
        ],
    ),
    "unknown vhost": (
        """
        vhosts: {v1: {queues: [q]}}
        publications:
          p: {vhost: v2, queue: q}
        subscriptions:
          s: {queue: q}
        """,
        [
            "app.yaml:3: publications.p.vhost: unknown vhost 'v2' (allowed: v1)",
            "app.yaml:5: subscriptions.s.vhost: unknown vhost '/' (allowed: v1)",
        ],
    ),
    "unknown strategy": (
        """
        vhosts: {/: {}}
        recovery:
          a: [{strategy: republsh}, {strategy: nack, requeue: perhaps}]
          b: {strategy: republish, atempts: 3}
          c: [nack]
        """,
        [
            "app.yaml:3: recovery.a[0]: unknown strategy 'republsh' "
            "(did you mean 'republish'?; allowed: ack, forward, nack, republish)",
            "app.yaml:3: recovery.a[1].requeue: must be true or false",
            "app.yaml:4: recovery.b.atempts: unknown key (did you mean 'attempts'?; "
            "allowed: attempts, defer, immediate_nack, restore_routing_headers, strategy)",
            "app.yaml:5: recovery.c[0]: must be a mapping, such as {strategy: nack}",
        ],
    ),
    "tabs": (
        "vhosts:\n\t/: {}\n",
        [
            "app.yaml:2: not valid YAML: found character '\\t' that cannot start any token; "
            "indent with spaces, not with tabs",
        ],
    ),
    "text that begins with a star": (
        "vhosts: {/: {publications: {p: {exchange: '', routing_key: *.new}}}}",
        [
            "app.yaml:1: not valid YAML: expected alphabetic or numeric character, but found '.'; "
            "put a value that begins with * & @ ` or % in quotes",
        ],
    ),
    "indented too deep": (
        """
        vhosts:
          /: embedded
            queues: [q]
        """,
        [
            "app.yaml:3: not valid YAML: mapping values are not allowed here; the line is indented "
            "deeper than its neighbours, the one above lacks its ':', or a text with ': ' lacks "
            "its quotes",
        ],
    ),
    "not indented like": (
        """
        vhosts:
          /:
            exchanges: [e]
             queues: [q]
        """,
        [
            "app.yaml:4: not valid YAML: expected <block end>, but found '<block mapping start>'; "
            "the line is not indented like the lines it belongs to",
        ],
    ),
    "a key of another section, or of another client": (
        """
        connection: embedded://
        vhosts:
          /:
            username: app
            connection: {host: rabbit, url: embedded://}
            queues:
              q: {durable: false, ttl: 5s}
            publications:
              p: {queue: q, persistent: false}
            subscriptions:
              s: {queue: q, prefetch_count: 3, limit: 3}
        recovery:
          r: {strategy: republish, max_retries: 3, delay: 1s}
        """,
        [
            "app.yaml:1: connection: unknown key: connection stands under vhosts.NAME",
            "app.yaml:4: vhosts./.username: unknown key: username is written user here, and stands "
            "under connection",
            "app.yaml:5: vhosts./.connection.host: unknown key: host is written hostname here",
            "app.yaml:7: vhosts./.queues.q.durable: unknown key: durable stands under options",
            "app.yaml:7: vhosts./.queues.q.ttl: unknown key: ttl is written message_ttl here, and "
            "stands under options",
            "app.yaml:9: vhosts./.publications.p.persistent: unknown key: persistent stands under "
            "options",
            "app.yaml:11: vhosts./.subscriptions.s.prefetch_count: unknown key: prefetch_count is "
            "written prefetch here",
            "app.yaml:11: vhosts./.subscriptions.s.limit: unknown key: limit stands under "
            "redeliveries",
            "app.yaml:13: recovery.r.max_retries: unknown key: max_retries is written attempts "
            "here",
            "app.yaml:13: recovery.r.delay: unknown key: delay is written defer here",
        ],
    ),
    "a value where a mapping belongs": (
        """
        vhosts:
          /:
            connection: {url: "amqps://h/", tls: true}
            exchanges:
              - e: {type: fanout}
            queues: [q]
            subscriptions:
              s: q
              t: {queue: q, recovery: nack}
        """,
        [
            "app.yaml:3: vhosts./.connection.tls: must be a mapping (keys: cafile, certfile, "
            "keyfile, verify, verify_hostname)",
            "app.yaml:5: vhosts./.exchanges[0]: is a mapping in a list: write {name: e, ...}, or "
            "no '-' before it",
            "app.yaml:8: vhosts./.subscriptions.s: must be a mapping, such as {queue: ...}",
            "app.yaml:9: vhosts./.subscriptions.t.recovery: unknown recovery 'nack'; for the "
            "strategy write {strategy: nack}",
        ],
    ),
    "binding cut short by a comment": (
        """
        vhosts:
          /:
            exchanges: [e]
            queues: [q]
            bindings:
              - e[order #] -> q
        """,
        [
            "app.yaml:6: vhosts./.bindings[0]: 'e[order' is not a binding; write "
            "'source -> destination' or 'source[key1, key2] -> destination', with one destination "
            "and without spaces or brackets in the names; a '#' after a space begins a comment of "
            "YAML: put the binding in quotes",
        ],
    ),
    "duplicate keys": (
        """
        vhosts:
          /:
            queues:
              q: {purge: true}
              r: {}
              q: {}
        """,
        ["app.yaml:6: vhosts./.queues.q: duplicate key, first on line 4"],
    ),
    "duplicate entries of a list": (
        """
        vhosts:
          /:
            queues: [q, {name: q}]
        """,
        ["app.yaml:3: vhosts./.queues.q: is declared twice"],
    ),
    "publication hoisted twice": (
        """
        vhosts:
          v1: {queues: [q], publications: {p: {queue: q}}}
          v2: {queues: [q], publications: {p: {queue: q}}}
        """,
        [
            "app.yaml:3: vhosts.v2.publications.p: duplicate publication 'p', "
            "declared in another place already",
        ],
    ),
    "publication of both and of none": (
        """
        vhosts:
          /:
            exchanges: [e]
            queues: [q]
            publications:
              both: {exchange: e, queue: q}
              none: {confirm: false}
        """,
        [
            "app.yaml:6: vhosts./.publications.both: name either an exchange or a queue",
            "app.yaml:7: vhosts./.publications.none: name either an exchange or a queue",
        ],
    ),
    "wrong types": (
        """
        vhosts:
          /:
            concurrency: many
            exchanges: {e: {type: topics}, f: {type: on}}
            queues: {q: [], r: {purge: maybe}}
            bindings: 3
            subscriptions: {s: {queue: q, prefetch: 70000}}
            publish_queue: {policy: block, max_queued_bytes: lots}
        """,
        [
            "app.yaml:3: vhosts./.concurrency: must be a whole number",
            "app.yaml:4: vhosts./.exchanges.e.type: unknown exchange type 'topics' "
            "(did you mean 'topic'?; allowed: direct, fanout, headers, topic, x-...)",
            "app.yaml:4: vhosts./.exchanges.f.type: must be text; put it in quotes",
            "app.yaml:5: vhosts./.queues.q: must be a mapping, such as {options: {durable: true}}",
            "app.yaml:5: vhosts./.queues.r.purge: must be true or false",
            "app.yaml:6: vhosts./.bindings: must be a list or a mapping by name",
            "app.yaml:7: vhosts./.subscriptions.s.queue: unknown queue 'q' (allowed: r)",
            "app.yaml:7: vhosts./.subscriptions.s.prefetch: must be less than or equal to 65535",
            "app.yaml:8: vhosts./.publish_queue.max_queued_bytes: must be a number of bytes, "
            "or a size such as 64MiB or 10MB",
            "app.yaml:8: vhosts./.publish_queue.policy: unknown value 'block' "
            "(allowed: drop_oldest, reject, wait)",
        ],
    ),
    "bindings that are none": (
        """
        vhosts:
          /:
            exchanges: [e]
            queues: [q, r]
            bindings:
              - e -> q, r
              - e[] -> q
              - 5
        """,
        [
            "app.yaml:6: vhosts./.bindings[0]: 'e -> q, r' is not a binding; write "
            "'source -> destination' or 'source[key1, key2] -> destination', with one "
            "destination and without spaces or brackets in the names",
            "app.yaml:7: vhosts./.bindings[1]: 'e[] -> q' has empty brackets; "
            "name a key or leave the brackets out",
            "app.yaml:8: vhosts./.bindings[2]: must be a name or a mapping",
        ],
    ),
    "names": (
        """
        vhosts:
          /:
            queues: [{purge: true}, 5, {name: 7}]
            exchanges: {e: {name: f}}
        """,
        [
            "app.yaml:3: vhosts./.queues[0]: needs a name: add 'name', as text",
            "app.yaml:3: vhosts./.queues[1]: must be a name or a mapping",
            "app.yaml:3: vhosts./.queues[2]: needs a name: add 'name', as text",
            "app.yaml:4: vhosts./.exchanges.e: its name 'f' contradicts its key; "
            "leave the name out",
        ],
    ),
    "variables": (
        """
        vhosts:
          /:
            connection: ${NOT_SET}
            queues: {"q": {options: {arguments: {x: "${ALSO NOT}"}}}}
        """,
        [
            "app.yaml:3: vhosts./.connection: environment variable NOT_SET is not set; "
            "set it or write ${NOT_SET:-default}",
            "app.yaml:4: vhosts./.queues.q.options.arguments.x: '${' does not begin a variable; "
            "write ${NAME}, ${NAME:-default} or $${",
        ],
    ),
    "defaults": (
        """
        vhosts:
          /:
            defaults: {queues: {prge: true}, vhosts: {}}
            queues: [a, b]
        defaults:
          queus: {}
          subscriptions: {prefetch: lots}
          publications: 3
          vhosts: {connection: {heartbeat: 1500ms}}
        profile: tests
        """,
        [
            "app.yaml:3: vhosts./.defaults.vhosts: unknown key (allowed: bindings, connection, "
            "exchanges, publications, queues, subscriptions)",
            "app.yaml:3: vhosts./.defaults.queues.prge: unknown key (did you mean 'purge'?; "
            "allowed: assert, check, options, purge, reply_to)",
            "app.yaml:6: defaults.queus: unknown key (did you mean 'queues'?; allowed: bindings, "
            "exchanges, publications, queues, subscriptions, vhosts)",
            "app.yaml:7: defaults.subscriptions.prefetch: must be a whole number",
            "app.yaml:8: defaults.publications: must be a mapping",
            "app.yaml:9: defaults.vhosts.connection.heartbeat: must be whole seconds",
            "app.yaml:10: profile: unknown profile 'tests' "
            "(did you mean 'test'?; allowed: default, test)",
        ],
    ),
    "alias within itself": (
        """
        vhosts: &all
          /: *all
        """,
        ["app.yaml:1: vhosts./: an alias contains itself"],
    ),
    "key without a value": (
        """
        vhosts:
          /:
            conection:
        """,
        [
            "app.yaml:3: vhosts./.conection: unknown key (did you mean 'connection'?; allowed: "
            "assert, bindings, check, concurrency, connection, connection_strategy, connections, "
            "defaults, exchanges, namespace, publication_channel_pools, publications, "
            "publish_queue, queues, redeliveries, separate_connections, startup, startup_timeout, "
            "subscriptions)",
        ],
    ),
}


def dedent(text: str) -> str:
    lines = text.split("\n")[1:] if text.startswith("\n") else text.split("\n")
    return "\n".join(line.removeprefix("        ") for line in lines)


@pytest.mark.parametrize(("text", "lines"), BROKEN.values(), ids=list(BROKEN))
def test_broken_configuration_gives_these_lines(
    text: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app.yaml").write_text(dedent(text))

    with pytest.raises(ConfigError) as caught:
        load_config("app.yaml", environ={})

    assert str(caught.value).split("\n") == lines


def test_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    file = tmp_path / "none.yaml"
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value) == f"{file}: cannot be read: No such file or directory"


def test_file_that_is_not_text_is_a_configuration_error(tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config(file)


def test_control_character_is_a_configuration_error(tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_bytes(b"vhosts: \x07")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(file)


def test_mapping_has_paths_and_no_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"vhosts": {"/": {"queues": {"q": {"purge": "maybe"}}}}})
    (problem,) = caught.value.problems
    assert (problem.path, problem.file, problem.line) == ("vhosts./.queues.q.purge", None, None)
    assert str(problem) == "configuration: vhosts./.queues.q.purge: must be true or false"


# --------------------------------------------------------------------------- entries of a vhost

A_VHOST: dict[str, Any] = {"exchanges": ["e"], "queues": ["q"]}


def problems(vhost: dict[str, Any], **root: Any) -> list[str]:
    """Path and text of the problems of `vhost`, called ``v``, and of further root keys."""
    with pytest.raises(ConfigError) as caught:
        load_config({"vhosts": {"v": {**A_VHOST, **vhost}}, **root}, environ={})
    return [f"{each.path}: {each.message}" for each in caught.value.problems]


@pytest.mark.parametrize(
    ("vhost", "root", "place"),
    [
        ({"bad": 1}, {}, "vhosts.v"),
        ({"publications": {"p": {"queue": "q", "bad": 1}}}, {}, "vhosts.v.publications.p"),
        ({"subscriptions": {"s": {"queue": "q", "bad": 1}}}, {}, "vhosts.v.subscriptions.s"),
        ({}, {"encryption": {"k": {"key": "00", "bad": 1}}}, "encryption.k"),
        ({}, {"shovels": {"x": {"bad": 1}}}, "shovels.x"),
        ({"exchanges": {"e": {"bad": 1}}}, {}, "vhosts.v.exchanges.e"),
        ({"queues": {"q": {"bad": 1}}}, {}, "vhosts.v.queues.q"),
        ({"bindings": {"e -> q": {"bad": 1}}}, {}, "vhosts.v.bindings.e -> q"),
        ({"publication_channel_pools": {"bad": {}}}, {}, "vhosts.v.publication_channel_pools"),
        ({"connection": {"hostname": "h", "bad": 1}}, {}, "vhosts.v.connection"),
        (
            {"connection": {"hostname": "h", "management": {"bad": 1}}},
            {},
            "vhosts.v.connection.management",
        ),
    ],
)
def test_unknown_key_is_reported_with_its_place_and_what_is_allowed(
    vhost: dict[str, Any], root: dict[str, Any], place: str
) -> None:
    found = problems(vhost, **root)
    assert any(each.startswith(f"{place}.bad: unknown key (") for each in found), found
    assert any("allowed: " in each for each in found)


def test_every_unknown_key_is_reported_not_the_first_alone() -> None:
    found = problems({"queues": {"q": {"bad": 1, "worse": 2}}})
    assert [each.split(":")[0] for each in found] == [
        "vhosts.v.queues.q.bad",
        "vhosts.v.queues.q.worse",
    ]


def test_key_that_rascal_gave_up_says_what_took_its_place() -> None:
    assert problems({"subscriptions": {"s": {"queue": "q", "deferCloseChannel": 5}}}) == [
        "vhosts.v.subscriptions.s.deferCloseChannel: unknown key: deferCloseChannel is rascal's: "
        "a subscription that ends waits up to close_timeout for what is unsettled"
    ]


def test_configuration_without_vhosts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^configuration: vhosts: No vhosts specified$"):
        load_config({})


@pytest.mark.parametrize(
    ("binding", "text"),
    [
        ({"destination": "q"}, "source: is missing"),
        ({"source": "e"}, "destination: is missing"),
        (
            {"source": "e", "destination": "q", "destination_type": "topic"},
            "destination_type: unknown value 'topic' (allowed: exchange, queue)",
        ),
        ({"source": "x", "destination": "q"}, "source: unknown exchange 'x' (allowed: e)"),
        ({"source": "e", "destination": "x"}, "destination: unknown queue 'x' (allowed: q)"),
        (
            {"source": "e", "destination": "x", "destination_type": "exchange"},
            "destination: unknown exchange 'x' (allowed: e)",
        ),
    ],
)
def test_wrong_binding_is_refused(binding: dict[str, Any], text: str) -> None:
    assert problems({"bindings": {"b": binding}}) == [f"vhosts.v.bindings.b.{text}"]


def test_binding_without_a_destination_type_leads_to_a_queue() -> None:
    bindings = [{"source": "e", "destination": "q"}]
    config = load_config({"vhosts": {"v": {**A_VHOST, "bindings": bindings}}})
    assert config.vhosts["v"].bindings[0].destination_type == "queue"


@pytest.mark.parametrize(
    ("publication", "text"),
    [
        ({"vhost": "v"}, ": name either an exchange or a queue"),
        ({"vhost": "v", "exchange": "e", "queue": "q"}, ": name either an exchange or a queue"),
        ({"queue": "q"}, ".vhost: unknown vhost '/' (allowed: v)"),
        ({"vhost": "x", "queue": "q"}, ".vhost: unknown vhost 'x' (allowed: v)"),
        ({"vhost": "v", "exchange": "x"}, ".exchange: unknown exchange 'x' (allowed: '', e)"),
        ({"vhost": "v", "queue": "x"}, ".queue: unknown queue 'x' (allowed: q)"),
    ],
)
def test_wrong_publication_is_refused(publication: dict[str, Any], text: str) -> None:
    assert problems({}, publications={"p": publication}) == [f"publications.p{text}"]


@pytest.mark.parametrize(
    ("subscription", "text"),
    [
        ({"vhost": "v"}, "queue: is missing"),
        ({"queue": "q"}, "vhost: unknown vhost '/' (allowed: v)"),
        ({"vhost": "v", "queue": "x"}, "queue: unknown queue 'x' (allowed: q)"),
        (
            {"vhost": "v", "queue": "q", "redeliveries": {"counter": "c"}},
            "redeliveries.counter: unknown counter 'c' (allowed: memory, stub)",
        ),
    ],
)
def test_wrong_subscription_is_refused(subscription: dict[str, Any], text: str) -> None:
    assert problems({}, subscriptions={"s": subscription}) == [f"subscriptions.s.{text}"]


@pytest.mark.parametrize("kind", ["publication", "subscription"])
def test_name_hoisted_from_two_vhosts_is_refused(kind: str) -> None:
    entry = {f"{kind}s": {"x": {"queue": "q"}}}
    with pytest.raises(ConfigError) as caught:
        load_config({"vhosts": {"v": {**A_VHOST, **entry}, "w": {**A_VHOST, **entry}}})
    (problem,) = caught.value.problems
    assert problem.path == f"vhosts.w.{kind}s.x"
    assert problem.message == f"duplicate {kind} 'x', declared in another place already"


def test_nested_entry_that_names_another_vhost_is_refused() -> None:
    assert problems({"subscriptions": {"s": {"queue": "q", "vhost": "w"}}}) == [
        "vhosts.v.subscriptions.s.vhost: stands in vhost 'v' but names vhost 'w'"
    ]


def test_entry_without_a_name_is_refused() -> None:
    assert problems({"queues": [{"purge": True}]}) == [
        "vhosts.v.queues[0]: needs a name: add 'name', as text"
    ]
