"""What ``envsmith run`` loads into each rank: marks of errors and of the end, and a thread that answers questions.

It stands on PYTHONPATH and acts only where RANK is set, in the first such process. It needs the standard library only,
Python >= 3.9. It never raises into the program, and whatever it replaces calls what was there before.
"""

import atexit
import contextlib
import faulthandler
import functools
import importlib
import importlib.util
import inspect
import json
import os
import re
import socket
import sys
import threading
import time
from typing import Any, Dict

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.environ.get("ENVSMITH_RUN_FOLDER", "")
PREFLIGHT = os.environ.get("ENVSMITH_RUN_PREFLIGHT", "")
ACTED = "ENVSMITH_RUN_RANK"
# The place of a rank that has come to init_process_group: whatever it starts is none, but a launch of its own.
JOINED = "joined"
# Seconds without Python's lock after which faulthandler writes all stacks, from a thread of its own.
LOCKED_SECONDS = 8.0
MOST_EXITS, MOST_CAUSES = 200, 5
LIBRARY = re.compile(re.escape(os.path.dirname(os.__file__)) + "/|/(?:site|dist)-packages/|<frozen ")
# Beginnings of variables whose values may be stored. Any other may hold a login.
VARIABLES = (
    "NCCL_",
    "TORCH_NCCL_",
    "TORCH_FR_",
    "TORCH_CUDA_",
    "TORCH_CPP_",
    "TORCH_DISTRIBUTED_",
    "TORCH_LOGS",
    "GLOO_",
    "CUDA_VISIBLE",
    "OMP_",
    "MKL_",
    "MASTER_ADDR",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "PYTHONPATH",
    "PYTHONHASH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
)
PRIVATE = re.compile("TOKEN|SECRET|PASS|PWD|KEY|AUTH|CREDENTIAL")
# Size of the recorder's buffer, and the beginning of its dump's name: of releases before torch 2.8, and since.
NAMES_OF_RECORDER = (
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
)
# Variables that belong to one rank, or to the host of another one.
OWN = (
    "TORCHELASTIC_ERROR_FILE",
    "MASTER_PORT",
    "NCCL_DEBUG_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCHELASTIC_RUN_ID",
)


def load_next() -> None:
    """Import the sitecustomize that would have been imported without this one."""
    mine = sys.modules.pop("sitecustomize")
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", mine)


def load_witness() -> Any:
    """Return the module that says what a rank knows of itself. It stands in another folder of the same package."""
    path = os.path.join(os.path.dirname(os.path.dirname(HERE)), "ranks", "witness.py")
    spec: Any = importlib.util.spec_from_file_location("envsmith_witness", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_rank() -> bool:
    """Tell whether this process is a rank, and no child of one."""
    place = ":".join((os.environ.get("RANK", ""), os.environ.get("LOCAL_RANK", "")))
    before, _, pid = os.environ.get(ACTED, "").rpartition(":")
    is_child = before in {place, JOINED} and pid != str(os.getpid())  # a rank may start its own program again
    if not os.path.isdir(FOLDER) or not os.environ.get("RANK", "").isdigit() or is_child:
        return False
    os.environ[ACTED] = "%s:%d" % (place, os.getpid())
    return True


def record_calls() -> None:
    """Switch torch's flight recorder on for NCCL, and its dump at a timeout, where the user has not said otherwise.

    Newer releases warn of the older names: torch 2.8.0 knows both, 2.5.1 the older ones (names in its libraries).
    """
    package = importlib.util.find_spec("torch")
    if package is None or not package.origin:
        return
    with open(os.path.join(os.path.dirname(package.origin), "version.py"), encoding="utf-8") as file:
        version = re.search(r"__version__ = '(\d+)\.(\d+)", file.read(4096))
    is_newer = version is not None and (int(version[1]), int(version[2])) >= (2, 8)
    size, dump = NAMES_OF_RECORDER[is_newer]
    if not any(name in os.environ for name in (NAMES_OF_RECORDER[0][0], NAMES_OF_RECORDER[1][0])):
        os.environ[size] = "2000"
    if not any(name in os.environ for name in (NAMES_OF_RECORDER[0][1], NAMES_OF_RECORDER[1][1])):
        os.environ[dump] = os.path.join(FOLDER, "nccl_trace_rank_")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


class AfterImport:
    """A finder that replaces ``init_process_group`` when its module is imported: who calls it is a rank."""

    module = "torch.distributed.distributed_c10d"

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            module.init_process_group = as_rank(module.init_process_group)

        spec.loader.exec_module = exec_module
        return spec


def as_rank(make_group: Any) -> Any:
    """Return ``init_process_group`` for a process that no launcher named, and with a preflight after its first success."""
    todo = [PREFLIGHT] if PREFLIGHT else []
    signature = inspect.signature(make_group)

    @functools.wraps(make_group)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        with contextlib.suppress(Exception):
            named = signature.bind_partial(*arguments, **options).arguments
            rank, world = int(named.get("rank", -1)), int(named.get("world_size", -1))
            is_new = ACTED not in os.environ and (rank >= 0 or os.environ.get("RANK", "").isdigit())
            os.environ[ACTED] = "%s:%d" % (JOINED, os.getpid())
            if is_new:
                record_calls()
                HookedRank(load_witness(), rank if rank >= 0 else int(os.environ["RANK"]), world).start()
        result = make_group(*arguments, **options)
        if todo:
            module, _, folder = todo.pop().partition(":")
            sys.path.append(folder)
            importlib.import_module(module).run()
        return result

    return init_process_group


class HookedRank:
    """One rank: its file of marks, and its connection to the watcher."""

    def __init__(self, witness: Any, rank: int, world: int = -1) -> None:
        self.witness, self.world = witness, world
        self.pid, self.rank = os.getpid(), rank
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.attempt = int(attempt) if attempt.isdigit() else 0
        stem = os.path.join(FOLDER, "%d-%d" % (self.rank, self.pid))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.stem, self.marks = stem, os.open(stem + ".marks", flags, 0o600)
        self.stacks = os.open(stem + ".stacks", flags, 0o600)
        self.may_time, self.has_dumped, self.exits = True, False, 0
        self.noted: Any = None
        self.shown: Any = None
        self.arm = faulthandler.dump_traceback_later
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def mark(self, kind: str, **row: Any) -> None:
        """Append one line to the marks. Children of this process write none."""
        if os.getpid() == self.pid:
            with contextlib.suppress(Exception):
                os.write(self.marks, (json.dumps(dict(row, mark=kind, at=time.time())) + "\n").encode())

    def start(self) -> None:
        """Install the hooks and start the thread."""
        if not faulthandler.is_enabled():
            faulthandler.enable(file=self.stacks)
        who = {"rank": self.rank, "pid": self.pid, "parent": os.getppid(), "attempt": self.attempt}
        self.mark("start", host=socket.gethostname(), **who, **facts(self.world))
        self.wrap_hooks()
        self.wrap_exits()
        atexit.register(self.end)
        folder = os.open(FOLDER, os.O_RDONLY)
        name = os.path.join(FOLDER, "s")  # the kernel takes no more than 107 bytes
        self.connection.connect(name if len(os.fsencode(name)) < 107 else "/proc/self/fd/%d/s" % folder)
        os.close(folder)
        self.connection.sendall(
            json.dumps({"rank": self.rank, "pid": self.pid, "attempt": self.attempt}).encode() + b"\n"
        )
        os.register_at_fork(after_in_child=self.connection.close)
        threading.Thread(target=self.answer, name="envsmith-run", daemon=True).start()

    def wrap_hooks(self) -> None:
        """Note errors that nobody catches, of the main thread and of others, and call the hook that was there."""
        last, last_of_thread = sys.excepthook, threading.excepthook

        def on_error(kind: Any, error: Any, trace: Any) -> None:
            caller = sys._getframe().f_back  # a library that calls this is a console and goes on
            if is_over() or caller is None or not LIBRARY.search(caller.f_code.co_filename):
                self.error(error, trace, "MainThread")
            else:
                self.shown = error
            last(kind, error, trace)

        def on_thread_error(args: Any) -> None:
            if args.exc_type is not SystemExit:
                self.error(args.exc_value, args.exc_traceback, getattr(args.thread, "name", ""))
            last_of_thread(args)

        sys.excepthook, threading.excepthook = on_error, on_thread_error

    def wrap_exits(self) -> None:
        """Note where the program asks for its end."""
        leave, leave_at_once, arm = sys.exit, os._exit, faulthandler.dump_traceback_later

        def exit(*status: Any) -> None:  # noqa: A001
            self.exits += 1
            if self.exits <= MOST_EXITS:  # who catches them asks for thousands
                self.leave_with_error()
                stack = self.witness.frames(sys._getframe().f_back)
                self.mark("exit", status=repr(status[0]) if status else "0", stack=stack)
            leave(*status)

        def _exit(status: int) -> None:
            frame = sys._getframe().f_back  # none where atexit itself calls it
            # The end of a forked child is not the program's wish.
            if frame is None or "/multiprocessing/popen_" not in frame.f_code.co_filename:
                self.leave_with_error()
                self.mark("exit", status=repr(status), stack=self.witness.frames(frame), at_once=True)
            leave_at_once(status)

        def dump_traceback_later(*arguments: Any, **options: Any) -> None:
            self.may_time = False  # the program uses the only timer itself
            arm(*arguments, **options)

        sys.exit, os._exit = exit, _exit  # type: ignore[assignment]
        faulthandler.dump_traceback_later = dump_traceback_later

    def leave_with_error(self) -> None:
        """Note the error with which a program leaves: it handles one, or its own hook has printed one and not called ours."""
        error, last = sys.exc_info()[1], self.last_error()
        if error is not None and not isinstance(error, SystemExit):
            self.error(error, error.__traceback__, threading.current_thread().name, handled=True)
        elif last is not None:
            self.error(last, last.__traceback__, "MainThread")

    def last_error(self) -> Any:
        """Return the error that ended the script, where its own hook has not called ours."""
        last = getattr(sys, "last_value", None)
        if not is_over():
            self.shown = last
        return None if last is self.shown else last

    def error(self, error: Any, trace: Any, thread: str, *, handled: bool = False) -> None:
        """Note an error with its last line, its frames and those it was raised from, and keep what the recorder holds."""
        with contextlib.suppress(Exception):
            if error is self.noted:
                return
            self.noted = error
            causes: "list[Any]" = []
            cause = error
            while len(causes) < MOST_CAUSES and cause is not None:
                parts = getattr(cause, "exceptions", None)  # of a group the first one
                before = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
                cause = parts[0] if isinstance(parts, tuple) and parts else before
                if cause is not None:
                    causes.append(self.witness.said(cause, cause.__traceback__))
            self.mark("error", thread=thread, handled=handled, causes=causes, **self.witness.said(error, trace))
            if not handled:
                self.dump()

    def end(self) -> None:
        """Note that the interpreter ends by itself. What was registered later has run by now."""
        last = self.last_error()
        self.leave_with_error()
        self.mark("end", failed=type(last).__name__ if last is not None else "")
        if os.getpid() == self.pid:
            self.dump()

    def dump(self) -> None:
        """Write what the recorder holds, once: it is gone with the process."""
        if self.has_dumped or os.getpid() != self.pid:
            return
        with contextlib.suppress(Exception):
            text = self.witness.recorder()
            if text:
                self.has_dumped = True
                with open(self.stem + ".calls", "wb") as file:
                    file.write(text)
                self.mark("groups", groups=self.witness.groups())

    def answer(self) -> None:
        """Answer the watcher's questions, one a line, until it hangs up."""
        with contextlib.suppress(Exception), self.connection.makefile("rwb") as talk:
            for line in talk:
                question = json.loads(line)
                if self.may_time:
                    self.arm(LOCKED_SECONDS, file=self.stacks)
                talk.write(self.reply(question) + b"\n")
                talk.flush()
        if self.may_time:
            faulthandler.cancel_dump_traceback_later()

    def reply(self, question: Dict[str, Any]) -> bytes:
        """Return the answer as one line of JSON. The recorder's text is in it as it is."""
        witness = self.witness
        answer, calls = {"id": question["id"], "at": time.time()}, b""
        try:
            answer["progress"] = witness.progress()
            if question["what"] == "all":
                answer.update(
                    facts(self.world), groups=witness.groups(), stacks=witness.all_stacks(), gpu=witness.gpu_bytes()
                )
                calls = witness.recorder().replace(b"\n", b" ")
            elif question["what"] == "stacks":
                answer["stacks"] = witness.all_stacks()
        except Exception as error:
            answer["failed"] = repr(error)[:300]
        text = json.dumps(answer).encode()
        return text[:-1] + b', "calls": ' + calls + b"}" if calls else text


def is_over() -> bool:
    """Tell whether the body of the script runs no more. An error that a console shows before that ends nothing."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            return False
        frame = frame.f_back
    return True


def facts(world: int = -1) -> Dict[str, Any]:
    """Return what may differ between ranks: variables, the interpreter, packages that are loaded."""
    variables = {
        k: v for k, v in os.environ.items() if k.startswith(VARIABLES) and k not in OWN and not PRIVATE.search(k)
    }
    variables["PYTHONPATH"] = os.pathsep.join(
        part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != HERE
    )
    if world > 0:
        variables["WORLD_SIZE"] = str(world)
    # Of the dictionaries: a module that is loaded when it is used stays unloaded.
    tops = [(name, getattr(module, "__dict__", {})) for name, module in list(sys.modules.items()) if "." not in name]
    versions = {name: names["__version__"] for name, names in tops if isinstance(names.get("__version__"), str)}
    versions["python"] = "%d.%d.%d" % sys.version_info[:3]
    return {"variables": variables, "versions": versions, "prefix": sys.prefix}


def note_drivers_error() -> None:
    """Note the error of a process that is no rank and passes on what a rank raised: the driver of Ray, for one."""
    last = sys.excepthook

    def on_error(kind: Any, error: Any, trace: Any) -> None:
        with contextlib.suppress(Exception):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            file = os.open(os.path.join(FOLDER, "driver-%d.marks" % os.getpid()), flags, 0o600)
            os.write(
                file,
                (json.dumps(dict(load_witness().said(error, trace), mark="error", at=time.time())) + "\n").encode(),
            )
            os.close(file)
        last(kind, error, trace)

    sys.excepthook = on_error


load_next()
if os.path.isdir(FOLDER) and ACTED not in os.environ:
    note_drivers_error()
if is_rank():
    with contextlib.suppress(Exception):
        record_calls()  # first: what it sets is then the same in the marks of every rank
    with contextlib.suppress(Exception):
        HookedRank(load_witness(), int(os.environ["RANK"])).start()
if os.path.isdir(FOLDER):
    sys.meta_path.insert(0, AfterImport())
