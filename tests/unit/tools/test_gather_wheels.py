"""The catalogue of ready wheels, gathered from small lock files."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import pytest

from envsmith.knowledge.graph.wheel_files import Publisher, Publishers

TOOLS = Path(__file__).parents[3] / "tools"
if str(TOOLS) not in sys.path:
    sys.path.insert(0, str(TOOLS))

from gather_wheels import Sighting, cover, gathered, read_sightings, written  # noqa: E402

OWN = "https://host.test/its/project"
FILE = "ext-1.0+cu12torch2.8cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"
HEX, OTHER = "a" * 64, "b" * 64
PUBLISHERS = Publishers(
    distributions=("ext",),
    publishers=(
        Publisher(name="its/project", releases=OWN, official=("ext",), evidence=()),
        Publisher(name="somebody/else", releases="https://host.test/else", evidence=()),
    ),
)
UV_LOCK = f"""
version = 1
[[package]]
name = "ext"
version = "1.0"
source = {{ url = "{OWN}/v1.0/{FILE}" }}
dependencies = [{{ name = "torch" }}]
wheels = [{{ url = "{OWN}/v1.0/{FILE}", hash = "sha256:{HEX}" }}]
[package.metadata]
requires-dist = [{{ name = "torch", specifier = ">=2" }}, {{ name = "pytest", marker = "extra == 'test'" }}]
"""


def read(name: str, text: str) -> list[Sighting]:
    return list(read_sightings(name, text, "owner/name @abc file"))


def test_a_uv_lock_gives_address_hash_version_and_requirements():
    assert read("uv.lock", UV_LOCK) == [
        Sighting(f"{OWN}/v1.0/{FILE}", HEX, "owner/name @abc file", "1.0", ("torch>=2",))
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pylock.toml", f'[[packages]]\nname="ext"\nwheels=[{{url="{OWN}/v1.0/{FILE}", hashes={{sha256="{HEX}"}}}}]'),
        ("pixi.lock", f'packages:\n- pypi: x\n  url: "{OWN}/v1.0/{FILE}"\n  sha256: {HEX}\n'),
        ("releases.json", f'{{"assets": [{{"browser_download_url": "{OWN}/v1.0/{FILE}", "digest": "sha256:{HEX}"}}]}}'),
        ("index.html", f'<a href="{OWN}/v1.0/{FILE.replace("+", "%2B")}#sha256={HEX}">ext</a>'),
        (
            "v1.nix",
            f'url = "{OWN}/v1.0/{FILE}";\nhash = "sha256-{base64.b64encode(bytes.fromhex(HEX)).decode()}";',
        ),
    ],
)
def test_each_format_gives_the_same_sighting(name, text):
    (sighting,) = read(name, text)

    assert (sighting.address, sighting.sha256) == (f"{OWN}/v1.0/{FILE}", HEX)


def test_a_file_that_cannot_be_read_is_left_out_and_named(capsys):
    assert read("uv.lock", "[[") == []
    assert "owner/name @abc file" in capsys.readouterr().err


def test_an_address_with_two_hashes_is_left_out_and_named():
    seen = [Sighting(f"{OWN}/v1.0/{FILE}", each, f"lock {each}") for each in (HEX, OTHER)]

    wheels, _, left_out = gathered(seen, PUBLISHERS)

    assert wheels == []
    assert left_out == [f"{OWN}/v1.0/{FILE}: 2 hashes, so the file was replaced"]


def test_what_is_not_of_a_publisher_or_not_for_linux_is_no_part_of_the_catalogue():
    elsewhere = Sighting(f"https://host.test/nobody/{FILE}", HEX, "lock")
    windows = Sighting(f"{OWN}/v1.0/ext-1.0-cp311-cp311-win_amd64.whl", HEX, "lock")

    assert gathered([elsewhere, windows], PUBLISHERS)[0] == []


def test_a_project_renames_a_finished_wheel_and_others_build_with_the_label():
    address = f"https://host.test/else/v1/{FILE}"

    wheels, _, _ = gathered([Sighting(f"{OWN}/v1.0/{FILE}", HEX, "a"), Sighting(address, OTHER, "b")], PUBLISHERS)

    assert {w.by: w.version for w in wheels} == {
        "its/project": "1.0",
        "somebody/else": "1.0+cu12torch2.8cxx11abitrue",
    }


@pytest.mark.parametrize(
    ("file", "tag", "built"),
    [
        (FILE, "v1.0", {"torch": "2.8", "cuda": "12", "cxx11_abi": "true"}),
        ("ext-1.0+cu128.torch27-cp310-cp310-linux_x86_64.whl", "v1", {"torch": "2.7", "cuda": "12.8"}),
        ("ext-1.0+cu130.torch210-cp310-cp310-linux_x86_64.whl", "v1", {"torch": "2.10", "cuda": "13.0"}),
        ("ext-1.0-cp312-cp312-linux_x86_64.whl", "v1.0-torch2.11-clean", {"torch": "2.11"}),
        ("ext-1.0-py3-none-any.whl", "v1", {"torch": "any", "cuda": "any"}),
        ("ext-1.0-cp312-cp312-linux_x86_64.whl", "v1", {}),
    ],
)
def test_what_a_wheel_was_built_for_is_what_its_name_or_tag_says(file, tag, built):
    (wheel,) = gathered([Sighting(f"{OWN}/{tag}/{file}", HEX, "a")], PUBLISHERS)[0]

    assert wheel.built_for == built


def test_few_files_vouch_for_all_wheels():
    files = [FILE, FILE.replace("cp311", "cp312")]
    seen = [Sighting(f"{OWN}/v1/{f}", HEX, "a/b @1 uv.lock") for f in files]
    seen += [Sighting(f"{OWN}/v1/{files[0]}", HEX, "a/b @2 uv.lock"), Sighting(f"{OWN}/v1/{files[0]}", HEX, "c/d @1 x")]

    chosen = cover(gathered(seen, PUBLISHERS)[0])

    assert chosen[f"its/project/v1/{files[0]}"] == ["a/b @1 uv.lock", "c/d @1 x"]


def test_the_same_sightings_in_any_order_give_the_same_file():
    files = [FILE, FILE.replace("cp311", "cp312")]
    seen = [Sighting(f"{OWN}/v1/{f}", HEX, "a/b @1 uv.lock") for f in files]

    texts = {written("ext", gathered(order, PUBLISHERS)[0], {}, "2026-11-22") for order in (seen, seen[::-1])}

    assert len(texts) == 1
    assert f'file: "{FILE}", version: "1.0", torch: "2.8", cuda: "12", cxx11_abi: true, sha256: "{HEX}"' in texts.pop()
