"""The configuration: precedence, origins, checks, and errors that help."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from posthouse import config as conf
from posthouse.config import PINCH_VARIABLES, Given, Source, load
from posthouse.errors import ConfigError
from posthouse.mailbox.policy import PRESETS, Policy


def write(folder: Path, text: str) -> Path:
    path = folder / "posthouse.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str = "", environ: dict[str, str] | None = None, **flags: str) -> str:
    write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load(environ or {}, folder, {name.replace("__", "."): Given(v, "--set") for name, v in flags.items()})
    return str(caught.value)


def test_without_anything_every_setting_has_its_default_and_says_so(tmp_path: Path) -> None:
    config = load({}, tmp_path)
    assert config.file is None
    assert config.path("store.path") == tmp_path / ".posthouse/posthouse.db"
    assert config.path("control.path") == tmp_path / ".posthouse/posthouse.db.sock"
    assert config.seconds("journal.export_s") == 60
    assert config.policies == PRESETS
    assert {row["source"] for row in config.explain()} == {"default"}


def test_a_flag_wins_over_the_environment_that_over_the_file_and_the_file_over_the_default(
    tmp_path: Path,
) -> None:
    write(tmp_path, '[metrics]\nport = 1\nhost = "::1"\n[engine]\nsweep_s = "2m"\n[log]\nlevel = "error"\n')
    environ = {"POSTHOUSE_METRICS_PORT": "2", "POSTHOUSE_ENGINE_SWEEP_S": "3m"}
    config = load(environ, tmp_path, {"metrics.port": Given("3", "--metrics-port")})
    assert config.values["metrics.port"] == (3, Source.FLAG, "--metrics-port")
    assert config.values["engine.sweep_s"] == (180.0, Source.ENVIRONMENT, "POSTHOUSE_ENGINE_SWEEP_S")
    assert config.values["metrics.host"] == ("::1", Source.FILE, f"{tmp_path}/posthouse.toml:3")
    assert config.values["log.level"] == ("error", Source.FILE, f"{tmp_path}/posthouse.toml:7")
    assert config.values["log.format"] == ("auto", Source.DEFAULT, "")


def test_the_file_is_named_by_flag_then_variable_then_found_in_the_working_directory(tmp_path: Path) -> None:
    for name, port in (("posthouse.toml", 1), ("variable.toml", 2), ("flag.toml", 3)):
        (tmp_path / name).write_text(f"metrics.port = {port}\n")
    named = {"POSTHOUSE_CONFIG": "variable.toml"}
    assert load({}, tmp_path).whole("metrics.port") == 1
    assert load(named, tmp_path).whole("metrics.port") == 2
    assert load(named, tmp_path, file="flag.toml").whole("metrics.port") == 3


@pytest.mark.parametrize(
    ("environ", "flag", "by"),
    [({}, "nowhere", "--config"), ({"POSTHOUSE_CONFIG": "nowhere"}, None, "POSTHOUSE_CONFIG")],
)
def test_a_named_file_that_is_not_there_is_an_error(
    tmp_path: Path, environ: dict[str, str], flag: str | None, by: str
) -> None:
    with pytest.raises(ConfigError, match=f"{by}: there is no file"):
        load(environ, tmp_path, file=flag)


def test_paths_start_from_the_file_that_names_them_and_otherwise_from_the_working_directory(
    tmp_path: Path,
) -> None:
    inner = tmp_path / "etc"
    inner.mkdir()
    write(inner, '[store]\npath = "mail.db"\n')
    config = load({"POSTHOUSE_JOURNAL_DIR": "books"}, tmp_path, file="etc/posthouse.toml")
    assert config.path("store.path") == inner / "mail.db"
    assert config.path("control.path") == inner / "mail.db.sock"
    assert config.path("journal.dir") == tmp_path / "books"


@pytest.mark.parametrize(
    ("text", "named", "line"),
    [
        ("[store]\npaht = 'x'\n", "store.path", 2),
        ("# why\n\n[stoer]\npath = 'x'\n", "store", 3),
        ("[engine]\nsweep_s = 5\n\n[metrics]\nhots = 'x'\n", "metrics.host", 5),
        ("store.nod = 'x'\n", "store.node", 1),
        ("[store]\nexport_s = 9\n", "journal.export_s", 2),
        ("[desk.relay]\ncapcity = 5\n", "desk.relay.capacity", 2),
        ("desk.relay = {ttl = 5}\n", "desk.relay.ttl_s", 1),
        ("[desk.inbuond]\ncapacity = 5\n", "inbound", 2),
        ("[desk.mine]\npreset = 'inbond'\n", "inbound", 2),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one_and_its_line(
    tmp_path: Path, text: str, named: str, line: int
) -> None:
    message = refusal(tmp_path, text)
    assert message.startswith(f"{tmp_path}/posthouse.toml:{line}: ")
    assert f"did you mean {named}?" in message


def test_the_variable_that_turns_compiled_modules_off_is_no_setting(tmp_path: Path) -> None:
    assert load({"POSTHOUSE_PURE": "1"}, tmp_path).values == load({}, tmp_path).values


def test_an_unknown_variable_names_the_nearest_known_one(tmp_path: Path) -> None:
    for variable, near in (
        ("POSTHOUSE_STOER_PATH", "POSTHOUSE_STORE_PATH"),
        ("POSTHOUSE_CONFG", "POSTHOUSE_CONFIG"),
        ("POSTHOUSE_DESK_RELAY_TTL", "POSTHOUSE_DESK_RELAY_TTL_S"),
    ):
        assert f"did you mean {near}?" in refusal(tmp_path, environ={variable: "5"})


def test_an_unknown_flag_names_the_nearest_known_setting(tmp_path: Path) -> None:
    assert "did you mean metrics.port?" in refusal(tmp_path, metrics__prot="5")


def test_variables_that_kubernetes_adds_beside_a_service_are_left_alone(tmp_path: Path) -> None:
    load(
        {
            "POSTHOUSE_SERVICE_HOST": "10.0.0.1",
            "POSTHOUSE_SERVICE_PORT_HTTP": "80",
            "POSTHOUSE_PORT": "tcp://10.0.0.1:80",
            "POSTHOUSE_PORT_80_TCP_ADDR": "10.0.0.1",
        },
        tmp_path,
    )


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    assert not load({"POSTHOUSE_METRICS_PORT": ""}, tmp_path).is_given("metrics.port")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[metrics]\nport = 70000", "metrics.port must be between 0 and 65535"),
        ("[metrics]\nport = true", "metrics.port must be a whole number"),
        ("[metrics]\nport = 1.5", "metrics.port must be a whole number"),
        ("[metrics]\nenabled = 'perhaps'", "metrics.enabled must be true or false"),
        ("[engine]\nsweep_s = 0", "engine.sweep_s must be between 1 and"),
        ("[engine]\nsweep_s = nan", "engine.sweep_s must be between 1 and"),
        ("[engine]\nsweep_s = 'soon'", "engine.sweep_s must be a duration"),
        ("[engine]\nsweep_s = [1]", "engine.sweep_s must be a duration"),
        ("[log]\nformat = 'jsno'", "log.format must be one of auto, text, json (did you mean json?)"),
        ("[store]\npath = 5", "store.path must be text"),
        ("[store]\npath = ''", "store.path must be text that is not empty"),
        ("[store]\nnode = '../x'", "store.node must be of the form"),
        ("[store]\nnode = '..'", "store.node must be of the form"),
        ("store = 5", "store is a section"),
        ("[store", "is not TOML"),
        ("[desk]\nrelay = 5", "a desk is a section"),
        ("[desk.relay]\ncapacity = 0", "capacity must be a whole number of at least 1"),
        ("[desk.relay]\nttl_s = -5", "ttl_s must be a number of seconds"),
        ("[desk.relay]\npoison = 'eat'", "desk.relay.poison must be one of block, skip, park"),
        ("[desk.relay]\nretry = ['x']", "desk.relay.retry must be a list of durations"),
        ("[desk.relay]\nretry = {cap_s = 5}", "desk.relay.retry must be a list of durations"),
        ("[desk.relay]\ncapacity = 'lots'", "desk.relay.capacity must be a whole number or 'none'"),
        ("[desk.relay]\ndedup_s = 'none'", "desk.relay.dedup_s must be a duration"),
        ("[desk.'Über']\npreset = 'relay'", "a desk's name is"),
        ("[desk.mine]\n", "a desk of your own says what it starts from"),
        ("[desk.inbound]\nquiet_s = 5", "quiet_max_s must be at least quiet_s"),
    ],
)
def test_wrong_types_and_ranges_are_named_with_file_and_line(tmp_path: Path, text: str, expected: str) -> None:
    message = refusal(tmp_path, text + "\n")
    assert expected in message
    assert message.startswith(f"{tmp_path}/posthouse.toml:")


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "posthouse.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load({}, tmp_path)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("5m", 300),
        ("7d", 604_800),
        ("1h30m", 5_400),
        ("250ms", 0.25),
        ("2w", 1_209_600),
    ],
)
def test_durations_may_be_written_with_units(text: str, seconds: float) -> None:
    assert conf.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5x", "5 m", "-5m", "1h 30m", "inf", "5m!", "1e3", "m5"])
def test_what_is_no_duration_is_not_taken_for_one(text: str) -> None:
    assert conf.duration_s(text) is None


def test_a_desk_starts_from_the_preset_of_its_name_or_from_the_one_it_names(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        [desk.relay]
        ttl_s = "3d"
        capacity = "none"
        [desk.invoices]
        preset = "inbound"
        poison = "block"
        retry = ["5s", "1m"]
        [desk.slow]
        preset = "outbox"
        retry = {first_s = "10s", cap_s = "10m"}
        """,
    )
    policies = load({}, tmp_path).policies
    assert policies["relay"] == PRESETS["relay"].replace(ttl_s=259_200.0, capacity=None)
    assert policies["invoices"].retry.steps_s == (5.0, 60.0)
    assert policies["invoices"].attempts_max == PRESETS["inbound"].attempts_max
    assert policies["slow"].retry == PRESETS["outbox"].retry
    assert policies["inbound"] == PRESETS["inbound"]


def test_a_desk_can_be_changed_by_variable_and_by_flag_and_explains_itself(tmp_path: Path) -> None:
    environ = {
        "POSTHOUSE_DESK_RELAY_TTL_S": "1h",
        "POSTHOUSE_DESK_MY_DESK_PRESET": "inbound",
        "POSTHOUSE_DESK_INBOUND_RETRY": "1s,1m",
        "POSTHOUSE_DESK_OUTBOX_RETRY": "{first_s = 1, cap_s = 4}",
    }
    config = load(environ, tmp_path, {"desk.relay.capacity": Given("7", "--set")})
    rows = {row["name"]: row for row in config.explain()}
    assert rows["desk.relay.ttl_s"] == {
        "name": "desk.relay.ttl_s",
        "value": 3600.0,
        "source": "environment",
        "where": "POSTHOUSE_DESK_RELAY_TTL_S",
    }
    assert rows["desk.relay.capacity"]["source"] == "flag"
    assert rows["desk.relay.lease_s"]["source"] == "default"
    assert config.policies["my_desk"].capacity == PRESETS["inbound"].capacity
    assert config.policies["inbound"].retry.steps_s == (1.0, 60.0)
    assert config.policies["outbox"].retry.cap_s == 4


@pytest.mark.parametrize(
    ("host", "node"),
    [
        ("vm-1.example.org", "vm-1.example.org"),
        ("Mäx's Mac", "M-x-s-Mac"),
        ("..", "local"),
        ("", "local"),
        ("a" * 99, "a" * 64),
    ],
)
def test_the_node_is_named_after_the_host_in_letters_that_a_folder_can_carry(host: str, node: str) -> None:
    assert conf.node_name(host) == node


def test_every_field_of_a_policy_is_described() -> None:
    assert set(conf.POLICY_HELP) == {f.name for f in dataclasses.fields(Policy)} - {"name"}


PINCH = {
    "PINCH_RELAY_PORT": "9000",
    "PINCH_RELAY_PUBLIC_HOST": "relay.example.com",
    "PINCH_RELAY_DB": "pinch.db",
    "PINCH_RELAY_QUEUE_MAX": "500",
    "PINCH_RELAY_QUEUE_TTL": "24",
    "PINCH_RELAY_RATE_LIMIT": "2.5",
    "PINCH_RELAY_RATE_BURST": "20",
    "PINCH_RELAY_ALLOWED_ORIGINS": "https://a.example,https://b.example",
}


def test_the_go_relays_variables_are_read_and_explained(tmp_path: Path) -> None:
    config = load(PINCH, tmp_path)
    assert config.whole("relay.port") == 9000
    assert config.text("relay.public_host") == "relay.example.com"
    assert config.text("relay.host") == "*", "the Go relay listens on every address"
    assert config.path("store.path") == tmp_path / "pinch.db"
    assert config.policies["relay"].capacity == config.whole("relay.queue_max") == 500
    assert config.policies["relay"].ttl_s == config.seconds("relay.queue_ttl_s") == 86_400
    assert config.number("relay.rate_limit") == 2.5
    assert config.whole("relay.rate_burst") == 20
    where = {row["name"]: row["where"] for row in config.explain()}
    for variable, name in PINCH_VARIABLES.items():
        assert where[name] == variable
    assert where["desk.relay.ttl_s"] == "PINCH_RELAY_QUEUE_TTL"


def test_our_variables_win_over_the_go_relays(tmp_path: Path) -> None:
    ours = {"POSTHOUSE_RELAY_PORT": "1", "POSTHOUSE_RELAY_HOST": "127.0.0.1", "POSTHOUSE_DESK_RELAY_CAPACITY": "7"}
    config = load({**PINCH, **ours}, tmp_path)
    assert config.whole("relay.port") == 1
    assert config.text("relay.host") == "127.0.0.1"
    assert config.whole("relay.queue_max") == 7


@pytest.mark.parametrize("variable", ["PINCH_RELAY_PORT", "PINCH_RELAY_QUEUE_TTL", "PINCH_RELAY_RATE_LIMIT"])
def test_a_go_relays_variable_that_cannot_be_read_is_named(tmp_path: Path, variable: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        load({variable: "many"}, tmp_path)


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    config = load({"POSTHOUSE_RELAY_SECRET": "open sesame"}, tmp_path)
    assert config.text("relay.secret") == "open sesame"
    assert "open sesame" not in str(config.explain())
    (tmp_path / "posthouse.toml").write_text("[relay]\nsecret = 12345\n")
    with pytest.raises(ConfigError) as caught:
        load({}, tmp_path)
    assert "12345" not in str(caught.value)
