"""What rules over facts need and no condition can say: each check computes the words of every finding that there may be.

A rule of ``matrix/doctor/rules.yaml`` names a check by its key in :data:`CHECKS`. Nothing here looks at the world.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from envsmith import solver
from envsmith.doctor.facts import Facts, LaunchCommand
from envsmith.doctor.read.lines import component_of
from envsmith.doctor.rule_conditions import Scene, below, key_of, number_in
from envsmith.doctor.vocabulary import is_read, variables
from envsmith.knowledge.symbols.system_libraries import system_libraries
from envsmith.smoke.machine_faults import problems_in

Words = Mapping[str, Any]

# How many ranks and nodes a start command asks for.

_RANKS = ("nproc-per-node", "num-gpus", "num-processes", "nprocs-per-node", "ntasks-per-node")
_TASKS = (("ntasks", "n"), ("ntasks-per-node", "tasks-per-node"))
_NODES = ("nnodes", "num-nodes", "num-machines", "nodes")
# These say how many ranks there are on all nodes together, and horovodrun which hosts these are: -np 4 -H a:2,b:2.
_OF_ALL_NODES = {"accelerate": _RANKS, "horovodrun": ("np", "num-proc")}


def _ranks_of(launch: LaunchCommand) -> int | None:
    names = _OF_ALL_NODES.get(launch.tool, _RANKS)
    return next((n for name in names if (n := number_in(launch.options.get(name))) is not None), None)


def _nodes_of(launch: LaunchCommand) -> int:
    if launch.tool == "horovodrun":
        return len(launch.options.get("h", launch.options.get("hosts", "")).split(","))
    numbers = (number_in(launch.options.get(name, "").split(":")[-1]) for name in _NODES)
    return next((n for n in numbers if n is not None), 1)


def words_of_launch(launch: LaunchCommand) -> Words:
    """Return the words that every rule over a start command can name."""
    address = launch.options.get("master-addr", launch.options.get("rdzv-endpoint", ""))
    return {
        "tool": launch.tool,
        "nodes": _nodes_of(launch),
        "address": address.split(":")[0],
        "fsdp": any("fsdp" in name for name in launch.options),
    }


def _world(facts: Facts) -> int | None:
    """Return the world size that the first command, hostfile or variable says."""
    for launch in (each for each in facts.launches if each.tool != "sbatch"):
        if (ranks := _ranks_of(launch)) is not None:
            return ranks if launch.tool in _OF_ALL_NODES else ranks * _nodes_of(launch)
        if launch.tool == "hostfile":
            slots = [number_in(s) for s in launch.options.get("slots", "").split(",")]
            if None not in slots:
                return sum(s for s in slots if s is not None)
    return number_in(facts.variables.get("WORLD_SIZE"))


# Checks: what is computed for a rule. Each gives the words of every finding that there may be.


def _always(_scene: Scene, _argument: None) -> Iterator[Words]:
    yield {}


def _gpu(scene: Scene, pattern: str) -> Iterator[Words]:
    """Give the first GPU whose name has the pattern."""
    name = next((name for name in scene.facts.gpus if re.search(pattern, name)), None)
    if name:
        yield {"gpu": name.split("(")[0].strip(), "gpu_name": name[:60]}


def _wheels(scene: Scene, libraries: list[str]) -> Iterator[Words]:
    """Give libraries of which wheels for several majors of CUDA are installed."""
    for library in libraries:
        wheels = {n: v for n, v in scene.facts.distributions.items() if re.fullmatch(rf"nvidia-{library}-cu\d+", n)}
        if len(wheels) < 2:
            continue
        own = f"nvidia-{library}-cu{(scene.facts.version('cuda') or '?').split('.')[0]}"
        foreign = [name for name in sorted(wheels) if name != own]
        yield {
            "library": library,
            "title": library.upper(),
            "wheels": ", ".join(f"{name} {version}" for name, version in sorted(wheels.items())),
            "own": own,
            "others": " ".join(foreign),
            "own_version": wheels.get(own),
            "any_version": next(iter(wheels.values())),
            "older": own in wheels and any(below(wheels[name], wheels[own]) for name in foreign),
        }


def _copies(scene: Scene, names: list[str]) -> Iterator[Words]:
    """Give libraries of which the loader finds another copy than torch's first."""
    for name in names:
        copies = [library for library in scene.facts.libraries if library.name == name]
        shadow = next((c for c in copies if c.first and c.how in {"preload", "ld_library_path"}), None)
        if shadow is None or len({c.path for c in copies}) < 2:
            continue
        own = next((c for c in copies if c.how in {"wheel", "rpath", "conda"}), None)
        version = own.version if own else None
        yield {
            "library": name.removeprefix("lib"),
            "count": len(copies),
            "variable": "LD_PRELOAD" if shadow.how == "preload" else "LD_LIBRARY_PATH",
            "path": shadow.path,
            "version": shadow.version,
            "own": version or ("version not known" if own else "not found"),
            "same": version is not None and version == shadow.version,
            "older": bool(version and shadow.version and below(shadow.version, version)),
        }


def _driver_level(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give the CUDA level of a driver whose major is below torch's, where only the level is known."""
    level, cuda = scene.facts.host.get("driver_cuda"), scene.facts.version("cuda")
    majors = [number_in((text or "").split(".")[0]) for text in (level, cuda)]
    if majors[0] is not None and majors[1] is not None and majors[0] < majors[1] and not scene.facts.version("driver"):
        yield {"level": level, "major": majors[0]}


def _health(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give what NVML showed to be wrong with GPUs and links."""
    for problem in problems_in(scene.facts.host.get("health", "")):
        yield dataclasses.asdict(problem)


def _cuda_home(scene: Scene, _argument: None) -> Iterator[Words]:
    variables = scene.facts.variables
    home = variables.get("CUDA_HOME", variables.get("CUDA_PATH", ""))
    first = next((part for part in home.split(":") if part), "/usr/local/cuda")
    if home:
        yield {"home": home, "quoted": repr(home), "first": first, "listed": ":" in home}


def _chosen_devices(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give the value of CUDA_VISIBLE_DEVICES where it is not 0 to n-1."""
    value = scene.facts.variables.get("CUDA_VISIBLE_DEVICES", "")
    numbers = [int(n) for n in value.split(",") if n.isdecimal() and len(n) < 5]
    if re.fullmatch(r"\d+(,\d+)*", value) and numbers != list(range(len(numbers))):
        yield {"devices": value}


def _unread_variables(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give variables that the installed release of their reader does not read."""
    every = variables()
    for name, value in scene.facts.variables.items():
        variable = every.get(name)
        version = scene.facts.version(variable.reads) if variable else None
        why = is_read(variable, version) if variable and version else None
        if variable and why:
            yield {
                "name": name,
                "value": value[:60],
                "why": why,
                "component": variable.reads,
                "version": version,
                "renamed": variable.renamed,
                "evidence": variable.evidence,
            }


# Variables of plug-ins and wrappers, which NCCL's own source does not name.
_PLUGINS = re.compile(
    r"NCCL_(?:OFI|FASTRAK|GPUDIRECTTCPX|TUNER|NET|PROFILER|HOME|ROOT|VERSION|INCLUDE|LIB|DIR|CONF|TESTS|UNIQUE"
    r"|TOPO_DUMP|DEBUG)"
)


def _misspelt_variables(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give variables that no release reads, with the name that is nearest."""
    every = variables()
    for name in scene.facts.variables:
        own = name.startswith(("NCCL_", "TORCH_NCCL_")) and not name.endswith(("_FILE", "_DIR", "_PATH"))
        if name in every or not own or _PLUGINS.match(name):
            continue
        if near := difflib.get_close_matches(name, list(every), n=1, cutoff=0.85):
            yield {"name": name, "near": near[0], "evidence": every[near[0]].evidence[:1]}


def _chosen_interfaces(scene: Scene, names: list[str]) -> Iterator[Words]:
    """Give the interfaces that variables choose, and whether this machine has them."""
    facts = scene.facts
    here = facts.interfaces if facts.host.get("interfaces") == "all" else ()
    best = next((i for i in here if not i.startswith(("lo", "docker", "veth", "br-"))), here[0] if here else "")
    for name in names:
        value = facts.variables.get(name, "")
        chosen = [part.lstrip("=") for part in value.split(",") if part and not part.startswith("^")]
        if chosen:
            yield {
                "name": name,
                "value": value,
                "here": ", ".join(here[:8]),
                "best": best,
                "missing": bool(here) and not any(i.startswith(part) for i in here for part in chosen),
                "local": all(part in {"lo", "docker0"} for part in chosen),
            }


def _unset_of(facts: Facts, names: list[str]) -> list[str]:
    unset = facts.host.get("unset", "").split(",")
    return [name for name in names if name in unset and not facts.variables.get(name)]


def _listed(names: Sequence[str], separator: str = ", ") -> Words:
    return {"names": separator.join(names), "are": "are" if len(names) > 1 else "is"}


def _unset(scene: Scene, names: list[str]) -> Iterator[Words]:
    """Give those of the variables that are known to be unset, together."""
    if missing := _unset_of(scene.facts, names):
        yield {**_listed(missing), "components": dict.fromkeys(missing, "unset")}


def _unset_one(scene: Scene, names: list[str]) -> Iterator[Words]:
    """Give those of the variables that are known to be unset, one by one."""
    yield from ({"name": name} for name in _unset_of(scene.facts, names))


def _equal(scene: Scene, values: dict[str, str]) -> Iterator[Words]:
    """Give those facts of the host that have these values."""
    same = {name: value for name, value in values.items() if scene.facts.host.get(name) == value}
    if same:
        yield {**_listed([name.rpartition(".")[2] for name in same]), "components": same}


def _absent_tools(scene: Scene, names: list[str]) -> Iterator[Words]:
    """Give those of the programs that are known to be absent."""
    absent = [name for name in names if name in scene.facts.tools and scene.facts.tools[name] is None]
    if absent:
        components = {name if component_of(name) else f"tool.{name}": "none" for name in absent}
        yield {**_listed(absent, " and "), "components": components}


def _in_use(scene: Scene, names: list[str]) -> Iterator[Words]:
    """Give those of the components that are in use."""
    if users := [name for name in names if scene.facts.used(name)]:
        yield _listed(users)


def _glibcxx(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give the GLIBCXX of the loaded libstdc++ where it is older than what the compiler's own may ask for."""
    newest, gcc = scene.facts.host.get("glibcxx"), scene.facts.version("gcc")
    stated = gcc or "11"
    release_of = stated if "." in stated else f"{stated}.1"  # the first release of a major has that number
    releases = system_libraries().gcc.releases
    of_compiler = [each.glibcxx for release, each in releases.items() if not below(release_of, release)]
    if newest and of_compiler and below(newest, str(of_compiler[-1])):
        compiler = f"GCC {gcc}" if gcc else "GCC 11 or later"
        yield {"version": newest, "needs": of_compiler[-1], "compiler": compiler}


def _series(version: str) -> str | None:
    key = key_of(version)
    return None if key is None else f"{key.major}.{key.minor}"


def _built_for(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give compiled packages that were built for another minor release of torch, as stated or as their version says."""
    facts = scene.facts
    torch = facts.version("torch")
    stated = {k.removeprefix("built_for."): v for k, v in facts.host.items() if k.startswith("built_for.")}
    for name, component in facts.components.items():
        if tag := re.search(r"\+.*torch(\d+\.\d+)", component.version):
            stated.setdefault(name, tag[1])
    for name, built_torch in stated.items():
        if torch is not None and _series(built_torch) not in {None, _series(torch)}:
            yield {"name": name, "other": built_torch, "series": _series(torch), "version": facts.version(name)}


def _checkouts(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give frameworks whose source tree is of another release than the installed one."""
    for key, tree in scene.facts.host.items():
        name = key.removeprefix("checkout.")
        installed = scene.facts.version(name)
        if name != key and installed is not None and installed != tree:
            yield {"name": name, "tree": tree, "installed": installed}


def _arch_list(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give architectures of TORCH_CUDA_ARCH_LIST that the toolkit does not know."""
    toolkit = scene.facts.version("toolkit")
    names = re.findall(r"\b(\d{1,2}\.\d)", scene.facts.variables.get("TORCH_CUDA_ARCH_LIST", ""))
    for arch in names if toolkit else ():
        number = arch.replace(".", "")
        for finding in solver.check({"toolkit": toolkit or "", "gpu": f"sm_{number}"}).findings:
            if finding.rule == "toolkit-gpu-min":
                yield {"arch": arch, "number": number, "fix": finding.fix, "evidence": finding.evidence[:1]}


def _ranks_and_gpus(ranks: int | None, gpus: int | None) -> Iterator[Words]:
    if ranks is not None and gpus is not None and ranks > gpus:
        plural = {"s": "s", "are": "s are"} if gpus > 1 else {"s": "", "are": " is"}
        yield {"ranks": ranks, "gpus": gpus, **plural}


def _ranks_of_node(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give the stated number of ranks where it is above that of GPUs."""
    yield from _ranks_and_gpus(number_in(scene.facts.host.get("ranks")), scene.facts.gpu_count)


def _ranks_of_command(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give the number of ranks that a command starts on a node where it is above that of visible GPUs."""
    launch, facts = _launch(scene), scene.facts
    ranks, gpus = _ranks_of(launch), facts.gpu_count
    if launch.tool in _OF_ALL_NODES and ranks is not None:
        ranks = ranks // max(1, _nodes_of(launch))
    visible = launch.options.get("CUDA_VISIBLE_DEVICES", facts.variables.get("CUDA_VISIBLE_DEVICES"))
    if visible and all(part.strip().isdigit() for part in visible.split(",")):
        gpus = min(gpus or 1 << 20, len(visible.split(",")))
    yield from _ranks_and_gpus(ranks, gpus)


def _launch(scene: Scene) -> LaunchCommand:
    assert scene.launch is not None  # noqa: S101 - a rule with this check names tools
    return scene.launch


def _indivisible(scene: Scene, names: list[str], world: int | None) -> Iterator[Words]:
    options = _launch(scene).options
    product = 1
    for name in names:
        product *= number_in(options.get(name)) or 1
    if world and world % product:
        yield {"world": world, "product": product, "enough": product * (world // product + 1)}


def _world_size(scene: Scene, names: list[str]) -> Iterator[Words]:
    """Give the world size of a command where it is not a multiple of the sizes that these options say."""
    ranks = _ranks_of(_launch(scene))
    if ranks is not None and any(name in _launch(scene).options for name in names):
        yield from _indivisible(scene, names, ranks * _nodes_of(_launch(scene)))


def _world_size_of_job(scene: Scene, names: list[str]) -> Iterator[Words]:
    """Give the world size of the whole job where it is not a multiple of the sizes that these options say."""
    yield from _indivisible(scene, names, _world(scene.facts))


def _batch(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give the batch sizes of a configuration that contradict each other."""
    options = _launch(scene).options
    train, micro = number_in(options.get("train_batch_size")), number_in(options.get("train_micro_batch_size_per_gpu"))
    steps = number_in(options.get("gradient_accumulation_steps")) or 1
    world = _world(scene.facts)
    if train is None or not micro:
        return
    if train != micro * steps * world if world else train % (micro * steps) != 0:
        right = micro * steps * world if world else f"a multiple of {micro * steps}"
        words = {"train": train, "micro": micro, "steps": steps, "right": right}
        yield words | {"world": f" {world}" if world else "", "right": right}


def _tasks(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give the tasks of a batch file that are fewer than those that it asks for on each node."""
    options = _launch(scene).options
    tasks, each = (number_in(options.get(long, options.get(short))) for long, short in _TASKS)
    nodes = number_in(options.get("nodes", options.get("n-nodes"))) or 1
    if tasks and each and tasks < nodes * each:
        yield {"tasks": tasks, "each": each, "nodes": nodes, "right": nodes * each}


_UNDER_SRUN = re.compile(r"\bsrun\s[^;&|]*\btorch(?:run|\.distributed)")


def _launcher_of_tasks(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give torchrun under srun where Slurm has a task for each of the ranks that torchrun starts by itself."""
    launch = _launch(scene)
    batch = next((b.options for b in scene.facts.launches if b.tool == "sbatch" and b.source == launch.source), {})
    own = any(name in launch.options for name in (*_TASKS[0], *_TASKS[1]))
    tasks = next((n for name in _TASKS[1] if (n := number_in((launch.options if own else batch).get(name)))), 1)
    processes = launch.options.get("nproc-per-node", "1")
    of_gpus = number_in(batch.get("gpus-per-node", batch.get("gres", "")).rpartition(":")[2])
    ranks = number_in(processes) or (tasks if "TASKS" in processes else of_gpus)
    every_task_is_a_node = "TASKS" in launch.options.get("nnodes", "") or "PROCS" in launch.options.get("nnodes", "")
    if 1 < tasks == ranks and not every_task_is_a_node and _UNDER_SRUN.search(launch.text):
        yield {"tasks": tasks}


def _hostfile(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give what a hostfile says: hosts that stand twice, a line that cannot be read, slots."""
    options = _launch(scene).options
    hosts = options.get("hosts", "").split(",")
    most = max((n for s in options.get("slots", "").split(",") if (n := number_in(s)) is not None), default=0)
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    bad = options.get("bad")
    yield {
        "twice": ", ".join(twice[:4]),
        "bad": repr(bad[:80]) if bad else None,
        "local": len(hosts) > 1 and bool({"localhost", "127.0.0.1"} & set(hosts)),
        "most": most,
        "over": scene.facts.gpu_count is not None and most > scene.facts.gpu_count,
    }


def _commands_of_nodes(facts: Facts) -> list[LaunchCommand]:
    return [launch for launch in facts.launches if launch.tool == "torchrun" and _nodes_of(launch) > 1]


def _differing(scene: Scene, names: list[str]) -> Iterator[Words]:
    """Give options of which the commands of several nodes have different values."""
    commands = _commands_of_nodes(scene.facts)
    for name in names:
        values = {c.options[name] for c in commands if name in c.options and "$" not in c.options[name]}
        if len(values) > 1:
            yield {"option": name.replace("-", "_"), "values": ", ".join(sorted(values)[:4])}


def _same_node_rank(scene: Scene, _argument: None) -> Iterator[Words]:
    """Give the ranks of nodes when two commands have the same."""
    ranks = [rank for c in _commands_of_nodes(scene.facts) if "$" not in (rank := c.options.get("node-rank", "$"))]
    if len(ranks) != len(set(ranks)):
        yield {"ranks": ", ".join(sorted(ranks)[:6])}


# Name -> what computes it, and the type of its argument in YAML.
CHECKS: Mapping[str, tuple[Callable[[Scene, Any], Iterator[Words]], type]] = {
    "always": (_always, type(None)),
    "gpu": (_gpu, str),
    "wheels": (_wheels, list),
    "copies": (_copies, list),
    "driver_level": (_driver_level, type(None)),
    "health": (_health, type(None)),
    "cuda_home": (_cuda_home, type(None)),
    "chosen_devices": (_chosen_devices, type(None)),
    "unread_variables": (_unread_variables, type(None)),
    "misspelt_variables": (_misspelt_variables, type(None)),
    "chosen_interfaces": (_chosen_interfaces, list),
    "unset": (_unset, list),
    "unset_one": (_unset_one, list),
    "equal": (_equal, dict),
    "absent_tools": (_absent_tools, list),
    "in_use": (_in_use, list),
    "glibcxx": (_glibcxx, type(None)),
    "built_for": (_built_for, type(None)),
    "checkouts": (_checkouts, type(None)),
    "arch_list": (_arch_list, type(None)),
    "ranks_of_node": (_ranks_of_node, type(None)),
    "ranks_of_command": (_ranks_of_command, type(None)),
    "world_size": (_world_size, list),
    "world_size_of_job": (_world_size_of_job, list),
    "batch": (_batch, type(None)),
    "tasks": (_tasks, type(None)),
    "launcher_of_tasks": (_launcher_of_tasks, type(None)),
    "hostfile": (_hostfile, type(None)),
    "differing": (_differing, list),
    "same_node_rank": (_same_node_rank, type(None)),
}
