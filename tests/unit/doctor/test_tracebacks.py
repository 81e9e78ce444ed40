"""The frames of a traceback in each of the forms in which people paste them, with the number and text of their lines."""

from __future__ import annotations

import pytest

from envsmith.doctor.read.tracebacks import frames_in, installed_path

FILE = "/env/lib/python3.10/site-packages/transformers/trainer.py"
FORMS = {
    "Python": f'  File "{FILE}", line 1624, in train\n    return inner_training_loop(\n',
    "Jupyter": f"File {FILE}:1624, in Trainer.train(self)\n   1622     x = 1\n-> 1624     return inner_training_loop(\n",
    "IPython": f"{FILE} in train(self, resume)\n   1622     x = 1\n-> 1624     return inner_training_loop(\n",
    "rich": f"│ {FILE}:1624 in train          │\n│   1622 │   │   x = 1     │\n│ ❱ 1624 │   │   return inner_training_loop(  │\n",
    "vLLM": f'(EngineCore_0 pid=41) ERROR 03-05 00:25:45 [core.py:1094]   File "{FILE}", line 1624, in train\n'
    "(EngineCore_0 pid=41) ERROR 03-05 00:25:46 [core.py:1094]     return inner_training_loop(\n",
    "Ray": f'(main_task pid=18, ip=10.0.0.1)   File "{FILE}", line 1624, in train\n'
    "(main_task pid=18, ip=10.0.0.1)     return inner_training_loop(\n",
    "rank": f'[rank0]:   File "{FILE}", line 1624, in train\n[rank0]:     return inner_training_loop(\n',
}


@pytest.mark.parametrize("form", FORMS)
def test_a_frame_has_its_file_its_line_and_the_code_of_it(form):
    (frame,) = frames_in("Traceback (most recent call last)\n" + FORMS[form])

    assert installed_path(frame.file) == "transformers/trainer.py"
    assert (frame.line, frame.source) == (1624, "return inner_training_loop(")


def test_frames_of_two_ranks_that_print_at_once_are_kept_apart():
    first, second = (FORMS["rank"].replace("rank0", rank).split("\n") for rank in ("rank0", "rank1"))
    text = "\n".join([first[0], second[0], first[1], second[1]])

    assert [(frame.line, frame.source) for frame in frames_in(text)] == [(1624, "return inner_training_loop(")] * 2


@pytest.mark.parametrize(
    ("file", "path"),
    [
        (r"C:\env\Lib\site-packages\torch\nn\modules\module.py", "torch/nn/modules/module.py"),
        ("/usr/lib/python3/dist-packages/torch/__init__.py", "torch/__init__.py"),
        ("/home/me/train.py", ""),
    ],
)
def test_a_file_of_an_installed_package_has_a_path_below_its_folder(file, path):
    assert installed_path(file) == path
