"""`refold keys`: private files that only their owner reads, public entries that every partition has."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from refold.client.catalog import write
from refold.core.approval.catalog import Catalog
from refold.core.approval.requester import check_token
from refold.core.approval.signature import PublicKey, SigningKey, sealed, sign, trusted, verified
from refold.core.errors import RefoldError, UnauthorisedError
from refold.core.messages import CatalogEntry, RunRequest
from refold.core.topics import CATALOG, RUN_REQUESTED
from refold.core.wire import canonical, codec
from refold.dev.kafka import EmbeddedKafka
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime import keys
from refold.engine.runtime.settings import KafkaSettings
from tests.cli.terminal import refold
from tests.roots import PINNED

NOBODY = ("--kafka", "127.0.0.1:9")
PARTITIONS = 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a data folder that commands use without being told."""
    monkeypatch.setenv("REFOLD_DATA", str(tmp_path))
    return tmp_path


def made(*words: str) -> dict[str, Any]:
    """What `keys new` says of a key that is not published."""
    done = refold("keys", "new", *words, "--no-publish", "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_new_key_is_a_file_that_only_its_owner_reads(folder: Path) -> None:
    told = made("ann", "--use", "vote", "--actor", "ann", "--actor", "bob", "--strength", "key")

    path = Path(told["file"])
    assert path == folder / "keys" / f"{told['kid']}.json"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert told["kid"].startswith("ann-")
    assert (told["actors"], told["strength"], told["published"]) == (["ann", "bob"], "key", False)
    key = keys.load(path)
    public = PublicKey(key.kid, "vote", told["x"])
    assert verified(sign({"issued": 1}, key), {key.kid: public}, use="vote") == {"issued": 1}


def test_no_word_of_a_command_tells_the_private_half(folder: Path) -> None:
    done = refold("keys", "new", "ops", "--use", "decision", "--no-publish", "--out", str(folder / "k.json"))

    private = json.loads((folder / "k.json").read_text())["d"]
    assert private not in done.output
    assert private not in refold("keys", "new", "ops", "--use", "vote", "--anybody", "--no-publish", "--json").output


def test_a_key_is_never_written_over(folder: Path) -> None:
    first = made("ops", "--use", "decision", "--out", str(folder / "k.json"))

    again = refold("keys", "new", "ops", "--use", "decision", "--no-publish", "--out", str(folder / "k.json"))

    assert again.exit_code == 2
    assert "is there already" in again.stderr
    assert keys.load(folder / "k.json").kid == first["kid"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("new", "a/b", "--use", "vote"), "the kid is not"),
        (("new", "../a", "--use", "vote"), "the kid is not"),
        (("new", "ann", "--use", "both"), "the use is none of decision, vote"),
        (("new", "ops", "--use", "decision", "--actor", "ann"), "only a key for votes or requests speaks for actors"),
        (("new", "ann", "--use", "request", "--actor", "ann", "--role", "cfo"), "only a vote key says what roles"),
        (("new", "ann", "--use", "request"), "whom the key speaks for is not said"),
        (("new", "ann", "--use", "vote"), "whom the key speaks for is not said"),
        (("new", "ann", "--use", "vote", "--actor", "ann", "--anybody"), "for some people and for anybody"),
        (("new", "ann", "--use", "vote", "--actor", "Ann"), "'Ann' is not the name of a person, ann is"),
        (("new", "ops", "--replaces", "ops-1"), "a key that replaces another has its owner"),
        (("new", "ops"), "a key has an owner and a use"),
        (("new", "--replaces", "ops-1", "--at", "tomorrow"), "--at 'tomorrow' is not a time with a zone"),
        (("new", "--replaces", "ops-1", "--at", "2030-01-31T12:00"), "is not a time with a zone"),
        (("new", "--replaces", "ops-1", "--at", "2020-01-01T00:00Z"), "2020-01-01T00:00Z is over"),
        (("revoke", "ops-1"), "--reason"),
        (("revoke", "ops-1", "--reason", " "), "a key is revoked for a reason"),
    ],
)
def test_what_is_wrong_with_the_words_is_said_before_anything_is_made(
    folder: Path, words: tuple[str, ...], said: str
) -> None:
    done = refold("keys", *words, *NOBODY)

    assert done.exit_code == 2
    assert said in done.stderr
    assert list(folder.iterdir()) == []


def test_no_key_is_made_that_could_not_be_published(folder: Path) -> None:
    done = refold("keys", "new", "ops", "--use", "decision", *NOBODY)

    assert done.exit_code == 5
    assert list(folder.iterdir()) == []


class Shop:
    """A broker with topics of its own, and what its catalog says."""

    def __init__(self, settings: KafkaSettings, folder: Path) -> None:
        self.settings, self.folder = settings, folder

    def keys(self, *words: str, code: int = 0) -> Result:
        """A command of `refold keys`, which must end with this code."""
        done = refold("keys", *words, "--kafka", self.settings.bootstrap)
        assert done.exit_code == code, done.output
        return done

    def read(self, *words: str) -> Any:
        """What a command says with --json."""
        return json.loads(self.keys(*words, "--json").stdout)

    def new(self, name: str, use: str = "decision", *words: str) -> SigningKey:
        """A new key, published."""
        return keys.load(Path(self.read("new", name, "--use", use, *words)["file"]))

    def known(self, partition: int = 0) -> dict[str, PublicKey]:
        """The keys that a lane of this partition knows."""
        catalog = Catalog(trusted((self.folder / "keys" / "root.pub").read_text().strip()))
        for record in KafkaLogReader(self.settings).scan(CATALOG, partition):
            catalog.follow(record.offset, record.key, record.value)
        assert catalog.void == 0
        return catalog.keys


@pytest.fixture
def shop(kafka: EmbeddedKafka, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Give a catalog of its own."""
    prefix = f"keys-{folder.name}."
    monkeypatch.setenv("REFOLD_KAFKA__PREFIX", prefix)
    monkeypatch.setenv("REFOLD_KAFKA__PARTITIONS", str(PARTITIONS))
    settings = KafkaSettings(bootstrap=kafka.bootstrap, prefix=prefix, partitions=PARTITIONS)
    Topics(settings, ("default",), payload_bytes=1 << 20).apply()
    assert refold("keys", "init").exit_code == 0
    return Shop(settings, folder)


def held(token: str, known: dict[str, PublicKey]) -> str:
    """`holds`, or why a decision does not."""
    try:
        verified(token, known, use="decision")
    except RefoldError as error:
        return str(error.fields["reason"])
    return "holds"


def test_a_key_lives_in_every_partition_from_new_to_revoked(shop: Shop) -> None:
    assert "no keys" in shop.keys("list").stdout
    first = shop.new("ops", "decision", "--strength", "key")
    before = sign({"issued": time.time_ns() // 1_000_000}, first)
    assert [held(before, shop.known(number)) for number in range(PARTITIONS)] == ["holds"] * PARTITIONS

    rotated = shop.read("new", "--replaces", first.kid)
    second = keys.load(Path(rotated["file"]))
    after = {"issued": rotated["retired_ms"]}

    for number in range(PARTITIONS):
        known = shop.known(number)
        assert (held(before, known), held(sign(after, first), known)) == ("holds", "retired")
        assert held(sign(after, second), known) == "holds"
        assert (known[second.kid].use, known[second.kid].strength) == ("decision", "key")
    assert second.kid.startswith("ops-")
    assert f"rotated to {second.kid}" in shop.known()[first.kid].reason

    shop.keys("revoke", first.kid, "--reason", "laptop lost")

    for number in range(PARTITIONS):
        assert (held(before, shop.known(number)), held(sign(after, second), shop.known(number))) == ("revoked", "holds")
    states = {row["kid"]: (row["state"], row["reason"]) for row in shop.read("list")}
    assert states == {first.kid: ("revoked", "laptop lost"), second.kid: ("active", "")}
    assert first.kid in shop.keys("list").stdout
    refused = shop.keys("new", "--replaces", first.kid, code=4).stderr
    assert refused.startswith(f"error: the key {first.kid} signs nothing")


def test_a_run_is_started_with_the_signature_of_who_asks(shop: Shop) -> None:
    start = ("run", "start", "deploy", "--requester", "ada", "--kafka", shop.settings.bootstrap)
    assert refold(*start, "--id", "r-1").exit_code == 0
    key = shop.new("ada", "request", "--actor", "ada")
    assert refold(*start, "--id", "r-2", "--input", '{"a": 1}').exit_code == 0
    assert refold(*start, "--id", "r-3", "--key", str(shop.folder / "keys" / f"{key.kid}.json")).exit_code == 0
    shop.new("bob", "request", "--actor", "bob")
    assert "there are 2 keys for requests" in refold(*start, "--id", "r-4").stderr

    asked = {
        request.run_id: request
        for number in range(PARTITIONS)
        for record in KafkaLogReader(shop.settings).scan(RUN_REQUESTED, number)
        if (request := codec.decode(RunRequest, record.value or b""))
    }
    known = shop.known()
    assert {name: bool(each.token) for name, each in asked.items()} == {"r-1": False, "r-2": True, "r-3": True}
    for each in (asked["r-2"], asked["r-3"]):  # type: ignore[index]
        check_token(each)
        said = verified(each.token, known, use="request")
        assert (said["run"], said["agent"], said["requester"]) == (each.run_id, "deploy", "ada")


def test_a_key_that_retires_later_signs_until_then(shop: Shop) -> None:
    first = shop.new("ann", "vote", "--actor", "ann")

    told = shop.keys("new", "--replaces", first.kid, "--at", "2100-01-01T00:00+00:00").stdout

    assert "signs until 2100-01-01 00:00:00 UTC" in told
    (old, new) = sorted(shop.known().values(), key=lambda key: key.retired_ms == 0)
    assert (old.kid, old.retired_ms, new.actors) == (first.kid, 4_102_444_800_000, ("ann",))
    assert verified(sign({"issued": 4_102_444_799_999}, first), shop.known(), use="vote")
    with pytest.raises(UnauthorisedError, match="may not sign"):
        verified(sign({"issued": 4_102_444_800_000}, first), shop.known(), use="vote")
    assert {row["state"] for row in shop.read("list")} == {"active", "retiring"}


def test_setup_and_doctor_say_when_nobody_could_decide(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shop.folder)
    place = ("--app", str(Path(__file__).with_name("app.py")), "--kafka", shop.settings.bootstrap)
    (shop.folder / "policies").mkdir()
    (shop.folder / "policies" / "p.yaml").write_text("rules: []\nfallback: {approvers: [role:ghost]}")
    assert "signs nothing" not in refold("setup", *place, "--policies", "policies").output
    kid = keys.load(shop.folder / "keys" / "decision.json").kid
    shop.keys("revoke", kid, "--reason", "lost")

    done = refold("setup", *place, "--policies", "policies")

    assert done.exit_code == 0
    assert f"the key {kid} in {shop.folder / 'keys' / 'decision.json'} signs nothing any more (lost)" in done.stderr
    assert "nobody has role:ghost by the catalog" in done.stderr
    found = json.loads(refold("doctor", "--kafka", shop.settings.bootstrap, "--json").stdout)["findings"]
    told = {finding["what"]: finding["verdict"] for finding in found if finding["check"] == "approvals"}
    assert [verdict for what, verdict in told.items() if "`refold keys new NAME --use decision`" in what] == ["problem"]
    assert [verdict for what, verdict in told.items() if "role:ghost" in what] == ["warning"]


def test_for_a_platform_that_others_reach_setup_makes_nothing_that_lets_anybody_decide(shop: Shop) -> None:
    app = str(Path(__file__).with_name("app.py"))
    port = shop.settings.bootstrap.rpartition(":")[2]

    done = refold("setup", "--app", app, "--kafka", f"0.0.0.0:{port}")

    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (shop.folder / "keys").iterdir()) == [
        "decision.json",
        "root.json",
        "root.pub",
    ]
    assert [key.use for key in shop.known().values()] == ["decision"]
    words = " ".join(done.stdout.split())
    assert "refold keys new NAME --use vote --actor NAME" in words
    assert "refold policy publish FILES" in words


def test_setup_makes_all_keys_and_a_policy_where_only_trusted_processes_reach_the_platform(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a network of containers: each key lies where the settings of its service name it."""
    files = {name: tmp_path / name / "a.key" for name in ("root", "trust", "decision", "vote", "ledger")}
    at = {
        "REFOLD_KAFKA__BOOTSTRAP": kafka.bootstrap.replace("127.0.0.1", "0.0.0.0"),
        "REFOLD_KAFKA__PREFIX": "trusted.",
        "REFOLD_KAFKA__PARTITIONS": str(PARTITIONS),
        "REFOLD_ALLOW_OPEN": "true",
        "REFOLD_ROOT": str(files["root"]),
        "REFOLD_TRUST": f"@{files['trust']}",
        "REFOLD_APPROVAL__KEY": str(files["decision"]),
        "REFOLD_GATEWAY__VOTE_KEY": str(files["vote"]),
        "REFOLD_EXECUTOR__LEDGER_KEY": str(files["ledger"]),
        "REFOLD_DATA": str(tmp_path / "data"),
    }
    for name, value in at.items():
        monkeypatch.setenv(name, value)
    files["trust"].parent.mkdir()
    setup = ("setup", "--app", str(Path(__file__).with_name("app.py")))

    first = refold(*setup)

    assert first.exit_code == 0, first.output
    assert f"REFOLD_TRUST=@{files['trust']}" in first.stdout
    assert not (tmp_path / "data").exists()
    before = {name: path.read_bytes() for name, path in files.items()}
    assert {key["use"] for key in json.loads(refold("keys", "list", "--json").stdout)} == {"decision", "vote"}
    assert json.loads(refold("policy", "show", "--json").stdout)["policy"]["rules"]

    other = tmp_path / "own.yaml"
    other.write_text("rules: []\nfallback: {approvers: [ada]}\ndoubt: {approvers: [ada]}")
    assert refold("policy", "publish", str(other)).exit_code == 0
    own = refold("policy", "show", "--json").stdout
    again = refold(*setup)

    assert again.exit_code == 0, again.output
    assert {name: path.read_bytes() for name, path in files.items()} == before
    assert refold("policy", "show", "--json").stdout == own, "a policy that is in force stays"

    files["root"].unlink()
    assert "there is no root key" in refold(*setup).output, "another one would be trusted by none"


def test_doctor_warns_of_what_lets_anybody_decide_where_others_reach_the_platform(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_TRUST", f"@{shop.folder / 'keys' / 'root.pub'}")
    port = shop.settings.bootstrap.rpartition(":")[2]
    refold("setup", "--app", str(Path(__file__).with_name("app.py")), "--kafka", shop.settings.bootstrap)

    told = {}
    for host in ("127.0.0.1", "0.0.0.0"):
        done = refold("doctor", "--kafka", f"{host}:{port}", "--redis", "redis://127.0.0.1:9/0", "--json")
        found = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "approvals"]
        told[host] = {each["verdict"] for each in found if "anybody" in each["what"] or "may decide" in each["what"]}
        text = " ".join(each["what"] for each in found)
        for part in ("speaks for anybody", "doubt: whoever has a vote key may decide", "not_requester: false"):
            assert part in text

    assert told == {"127.0.0.1": {"ok"}, "0.0.0.0": {"warning"}}


def test_a_key_that_the_catalog_does_not_have_is_not_found(shop: Shop) -> None:
    assert "has no key ops-1" in shop.keys("revoke", "ops-1", "--reason", "x", code=3).stderr
    assert "has no key ops-1" in shop.keys("new", "--replaces", "ops-1", code=3).stderr
    assert {path.name for path in (shop.folder / "keys").iterdir()} == {"root.json", "root.pub"}


def test_a_key_that_one_partition_alone_has_is_listed_and_revoked_in_all(shop: Shop) -> None:
    root, stray = keys.load(shop.folder / "keys" / "root.json"), keys.new("decision", "stray")
    content = canonical.dumps(stray.public().content())
    publisher = KafkaPublisher(shop.settings, partitions=PARTITIONS)
    write(publisher, [2], sealed(CatalogEntry(f"key/{stray.kid}", "key", content), root, 1))

    listed = shop.keys("list")
    shop.keys("revoke", stray.kid, "--reason", "nobody knows it")

    assert stray.kid in listed.stdout
    assert "partitions 0, 1 of the catalog have something else" in " ".join(listed.stderr.split())
    assert [shop.known(number)[stray.kid].revoked for number in range(PARTITIONS)] == [True] * PARTITIONS


def test_a_record_that_nobody_has_signed_is_told_and_is_no_key(shop: Shop) -> None:
    own = keys.new("decision", "mallory")
    entry = CatalogEntry(f"key/{own.kid}", "key", canonical.dumps(own.public().content()))
    write(KafkaPublisher(shop.settings, partitions=PARTITIONS), [1], entry)

    listed = shop.keys("list")

    assert own.kid not in listed.stdout
    assert f"a record of the catalog is void: 1/0 key/{own.kid}" in " ".join(listed.stderr.split())


def test_nothing_is_published_with_a_root_key_that_services_do_not_trust(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_TRUST", PINNED)

    refused = shop.keys("new", "ops", "--use", "decision", code=2)

    assert "is not one that REFOLD_TRUST names" in " ".join(refused.stderr.split())
    assert refold("keys", "init", "--json").stdout == refold("keys", "init", "--json").stdout
