"""What an environment for a project must have."""

from __future__ import annotations

from dataclasses import replace

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from envsmith.project.code.needs import _spec, exact_versions, infer
from envsmith.project.demand import Demand, Demands, parse_line

from .conftest import uses_of


def stated(**specs: str) -> Demands:
    return Demands(demands=tuple(parse_line(f"{n}{s}", "requirements.txt:1") for n, s in specs.items()))


def test_releases_that_have_every_name_are_asked_for_and_the_place_is_said(index):
    answer = infer(uses_of(train="from transformers import Conversation"), Demands(), index)
    assert answer.components["transformers"] == "<4.42.0"
    assert answer.reasons == ("transformers <4.42.0: train.py:1 takes transformers.Conversation",)


def test_what_a_module_imports_without_its_package_requiring_it_is_installed_too(index):
    answer = infer(uses_of(train="from torch.utils.tensorboard import SummaryWriter"), Demands(), index)
    assert "tensorboard" in {*answer.components, *answer.packages}


def test_a_pin_of_the_project_is_kept_where_it_has_the_names(index):
    uses = uses_of(train="from transformers import Conversation")
    assert infer(uses, stated(transformers="==4.41.0"), index).components["transformers"] == "==4.41.0"


def test_a_pin_outside_of_what_was_measured_is_kept(index):
    uses = uses_of(train="from transformers import Conversation")
    assert infer(uses, stated(transformers="==3.0.0"), index).packages == ("transformers==3.0.0",)


def test_what_stops_an_import_comes_before_what_stops_a_function(index):
    text = "from transformers import Conversation\ndef f():\n    from transformers import Cache"
    answer = infer(uses_of(train=text), Demands(), index)
    assert answer.components["transformers"] == "<4.42.0"
    assert any("transformers.Cache" in reason for reason in answer.reasons)


def test_what_is_only_taken_under_a_guard_is_not_needed(index):
    text = "try:\n    from transformers import Conversation\nexcept ImportError:\n    pass"
    assert infer(uses_of(train=text), Demands(), index).components == {}


def test_a_package_that_the_code_does_without_and_no_file_names_is_not_installed(index):
    uses = uses_of(
        tpu="def device():\n    import torch_xla.core",
        found="def has_xla():\n    try:\n        import torch_xla\n    except ImportError:\n        return False",
    )

    alone, named = infer(uses, Demands(), index), infer(uses, stated(**{"torch-xla": ""}), index)

    assert (alone.packages, named.packages) == ((), ("torch-xla",))
    assert alone.reasons == ("torch-xla is left out: found.py:3 does without it, and no file of the project names it",)


def test_what_is_imported_under_a_guard_only_is_not_installed_for_the_functions_that_use_it(index):
    text = "if is_xla_available():\n    from torch_xla import device\ndef step():\n    return device()"
    assert infer(uses_of(train=text), Demands(), index).packages == ()


def test_a_package_that_a_module_needs_while_it_is_imported_is_installed_whatever_others_do_without(index):
    uses = uses_of(tpu="import torch_xla.core", found="try:\n    import torch_xla\nexcept ImportError:\n    pass")
    assert infer(uses, Demands(), index).packages == ("torch-xla",)


def test_a_framework_that_is_imported_is_the_framework_of_the_request(index):
    answer = infer(uses_of(train="import deepspeed, torch"), Demands(), index)
    assert answer.components == {"deepspeed": "*", "torch": "*"}


def test_a_package_is_installed_when_the_project_states_it_or_its_wheel_was_read(index):
    answer = infer(uses_of(train="import skimage, mystery, other"), stated(mystery=">=2", unused=""), index)
    assert answer.packages == ("mystery>=2", "scikit-image", "unused")
    assert answer.unnamed == ("other",)


def test_only_a_single_exact_clause_is_a_pin():
    assert exact_versions(stated(a="==1.0+cu117", b="==1.*", c=">=1", d="==1.0,<2")) == {"a": "1.0"}


def test_what_only_a_text_for_people_names_is_installed_where_the_code_imports_it(index):
    named = Demand(requirement=Requirement("flash-attn==2.3.6"), where="README.md:3", is_optional=True)
    used = Demand(requirement=Requirement("tiktoken>=0.2"), where="README.md:4", is_optional=True)
    answer = infer(uses_of(train="import tiktoken"), Demands(demands=(named, used)), index)
    assert (answer.components, answer.packages) == ({}, ("tiktoken>=0.2",))


def test_a_pin_of_torch_that_envsmith_has_no_release_of_gives_way(index):
    answer = infer(uses_of(train="import torch"), stated(torch="==1.4.0"), index)
    assert answer.components == {"torch": "*"}
    assert any("gives way" in reason for reason in answer.reasons)


def test_what_the_names_alone_need_is_known_beside_the_pin(index):
    answer = infer(uses_of(train="from transformers import Conversation"), stated(transformers=">=4.40"), index)
    assert (answer.components["transformers"], answer.names["transformers"]) == (">=4.40,<4.42.0", "<4.42.0")


def test_names_that_come_and_go_make_no_endless_specifier():
    releases = [f"1.{n}" for n in range(60)]
    spec = _spec(releases[::2], releases)
    assert spec.count("!=") <= 8
    assert releases[58] in SpecifierSet(spec)


def test_where_the_pin_of_torch_gives_way_so_do_the_pins_beside_it_that_are_as_old(index):
    pins = stated(torch="==1.4.0", torchtext="==0.5.0", peft="==0.4.0")
    answer = infer(uses_of(train="import torch, torchtext, peft"), pins, index)
    assert answer.components == {"torch": "*", "torchtext": "*", "peft": "==0.4.0"}
    assert answer.packages == ()


def test_a_release_that_may_have_a_name_is_not_left_out(index):
    """The members of an enumeration of C++ are not seen before the release in which it is one of Python."""

    class Unsure(type(index)):
        def ask(self, path, argument=None, *, distribution=None):
            presence = super().ask(path, argument, distribution=distribution)
            unsure = frozenset(presence.releases[:1]) if path.endswith("Conversation") else frozenset()
            return replace(presence, unknown=unsure, present=presence.present - unsure)

    answer = infer(uses_of(train="from transformers import Conversation"), Demands(), Unsure(index.names))
    assert answer.components["transformers"] == "<4.42.0"


def test_what_a_pin_lacks_is_one_sentence(index):
    text = "from transformers import Conversation, Trainer\nTrainer.old_step"

    answer = infer(uses_of(train=text), stated(transformers="==4.43.0"), index)

    assert answer.reasons[1:] == (
        "transformers ==4.43.0 lacks transformers.Conversation, which train.py:1 takes, and 1 more names",
    )
