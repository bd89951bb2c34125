# Two commands to start with: `make demo` shows what hiwater does, `make test` builds and tests everything.
# PYTHON chooses the interpreter, VENV where its environment goes.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT := examples/out
BUILD_TOOLS := $(if $(shell command -v cmake),,cmake) $(if $(shell command -v ninja),,ninja)
SOURCES := src tests examples benchmarks tools
NATIVE := build/native
# Only what changed is compiled: for who builds one at a time from this checkout.
KEPT_BUILD := --no-build-isolation --config-settings build-dir='build/{wheel_tag}'
# The versions of what the environments of the gate have. Targets that try other versions do not use it.
LOCK := requirements/dev.txt
INSTALL := tools/install.py

# All targets but the environment are names of actions.
.PHONY: $(shell sed -n 's/^\([a-z0-9-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help:
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 28

# The environment, made anew when what it is made from changes. Editable: a change to Python code needs no new install. hiwater is built where
# nothing is installed but what a build needs, and with no network.
$(VENV)/installed: pyproject.toml $(LOCK) CMakeLists.txt $(shell find native -type f)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --no-compile pip scikit-build-core nanobind $(BUILD_TOOLS)
	PIP_NO_INDEX=1 $(BIN)/python -m pip install --quiet $(KEPT_BUILD) --no-deps --editable .
	$(BIN)/python $(INSTALL) --dependencies --extra test --extra lint
	@touch $@

demo: $(VENV)/installed ## run an example and show what held its memory
	@mkdir -p $(OUT)
	$(BIN)/hiwater run -o $(OUT)/etl.hiw examples/etl.py
	$(BIN)/hiwater report $(OUT)/etl.hiw --format text
	$(BIN)/hiwater report $(OUT)/etl.hiw --format html -o $(OUT)/etl.html
	@echo 'all of it is in $(OUT)/etl.html: open it in a browser'

# Five at a time on two processors: most of them wait for a program. Tests of what is done for torch have processes of their own: with its
# libraries loaded, resident memory is nothing to measure to the page. Each of these files has one process; they compute themselves, and each process
# takes six seconds to load what they need, so there are three. Without torch they are skipped, all of them (5). What the tests start does not write
# compiled modules, and would compile hiwater each time.
WITH_TORCH := $(shell grep -rlE --include='test_*.py' '^(import torch|.*importorskip..torch)' tests | sort)
PYTEST := $(BIN)/python -m pytest

test: $(VENV)/installed ## build and run all tests
	$(BIN)/python -m compileall -q src
	$(PYTEST) -n 5 --dist worksteal $(addprefix --ignore=,$(WITH_TORCH))
	$(PYTEST) -n 3 --dist loadfile $(WITH_TORCH) || [ $$? -eq 5 ]

# Of the processes that the tests start, too. What measures slows programs down and allocates, so tests of times and of memory may fail here, and
# say nothing: `make test` is for them. `make coverage WORDS=tests/report` is for a part.
coverage: $(VENV)/installed ## measure which lines and branches of the Python code the tests run, and write build/coverage/html
	rm -rf build/coverage
	-$(BIN)/python -m coverage run -m pytest -q -n 3 --dist loadfile $(WORDS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage html --quiet --directory build/coverage/html
	$(BIN)/python -m coverage report --format total

# Environments of its own, and any Python from 3.11 on to run it: `make test-pythons WORDS='--only 3.14'`.
test-pythons: ## build and test on every CPython from 3.11 to 3.15 that is found, and show a table
	$(PYTHON) tools/test_pythons.py $(WORDS)

# A filter of system calls refuses what is newer, in all processes of the run: kernels from 4.18 to 6.6 are what most servers have.
# With a filter no process gets more rights, and none can ask for a strict one: tests of these are left out.
test-older-kernel: $(VENV)/installed ## test the recorder as where the kernel lacks what came after Linux 4.18
	$(BIN)/python tests/helpers/older_kernel.py -m pytest -q -n 5 --dist worksteal \
	    tests/first_glance tests/holders tests/leaks tests/meters tests/record tests/run tests/safety tests/sampling tests/sums tests/truth \
	    -k 'not rights_records_nothing and not (strict and seccomp)' $(WORDS)

# An environment of its own, with the oldest versions that pyproject.toml names and their contemporaries.
OLDEST_NOTEBOOKS := ipython==7.34.0 ipykernel==6.17.1
test-notebooks-oldest: ## test notebooks with the oldest IPython and ipykernel that are supported
	$(PYTHON) -m venv --clear build/oldest-notebooks
	build/oldest-notebooks/bin/python -m pip install --quiet scikit-build-core nanobind $(BUILD_TOOLS)
	build/oldest-notebooks/bin/python -m pip install --quiet $(KEPT_BUILD) '.[test]' $(OLDEST_NOTEBOOKS)
	build/oldest-notebooks/bin/python -m pytest tests/notebook/test_notebook.py

# An environment of its own, with the build of torch that most people have, which is for CUDA: gigabytes. `make test-torch TORCH=torch==2.14.1` chooses.
TORCH ?= torch
test-torch: ## test what is done for torch with its newest build for CUDA, with no need of a GPU
	$(PYTHON) -m venv build/torch
	build/torch/bin/python $(INSTALL) --no-compile --dependencies --extra test pip scikit-build-core nanobind $(BUILD_TOOLS)
	build/torch/bin/python -m pip install --quiet --no-compile '$(TORCH)'
	build/torch/bin/python $(INSTALL) --no-compile --group cpu-frameworks
	PIP_NO_INDEX=1 build/torch/bin/python -m pip install --quiet $(KEPT_BUILD) --no-deps --editable .
	PATH="$(CURDIR)/build/torch/bin:$$PATH" build/torch/bin/python -m pytest -n 3 --dist loadfile $(WITH_TORCH)

# Environments of their own, with the engines; Airflow's, which asks for certain versions of much, is apart. Where no torch without the libraries for GPUs can be had, its tests are skipped, which the summary says.
CLUSTER_ENGINES := 'distributed>=2024.1' 'pyspark>=4' pandas pyarrow 'ray>=2.40' 'celery>=5.4' 'prefect>=3' 'fastapi<0.150' pyyaml
test-clusters: ## test what is done for cluster engines, with real clusters on this machine
	$(PYTHON) -m venv build/clusters
	build/clusters/bin/python -m pip install --quiet scikit-build-core nanobind setuptools wheel $(BUILD_TOOLS)
	build/clusters/bin/python -m pip install --quiet $(KEPT_BUILD) . pytest psutil hypothesis jsonschema-rs $(CLUSTER_ENGINES)
	-build/clusters/bin/python -m pip install --quiet filelock typing-extensions sympy networkx jinja2 fsspec
	-build/clusters/bin/python -m pip install --quiet --no-deps torch==2.13.0
	build/clusters/bin/python -c 'import torch' || build/clusters/bin/python -m pip uninstall --quiet --yes torch
	PATH="$(CURDIR)/build/clusters/bin:$$PATH" build/clusters/bin/python -m pytest tests/clusters
	$(PYTHON) -m venv build/airflow
	build/airflow/bin/python -m pip install --quiet scikit-build-core nanobind $(BUILD_TOOLS) 'apache-airflow>=3'
	build/airflow/bin/python -m pip install --quiet $(KEPT_BUILD) . pytest psutil hypothesis jsonschema-rs
	PATH="$(CURDIR)/build/airflow/bin:$$PATH" build/airflow/bin/python -m pytest tests/clusters/test_recipes.py -k airflow

# zig is a package on PyPI that has what compilers need for other systems, in the version that makes the wheels.
ZIG := build/zig
OBJECTS_ONLY = build/objects-only-$$($(BIN)/python -c 'import sys; print(sys.implementation.cache_tag)')
$(ZIG)/installed: tools/wheels.py | $(VENV)/installed
	$(BIN)/python -m pip install --quiet --upgrade --target $(ZIG) $$(sed -n 's/^COMPILER = "\(.*\)"/\1/p' tools/wheels.py)
	@touch $@

objects-only: $(ZIG)/installed ## build the engine that records Python's objects alone, and compile it for macOS, where it has not run yet
	$(BIN)/python tools/objects_only.py build $(OBJECTS_ONLY)
	PYTHONPATH=$(ZIG) $(BIN)/python tools/objects_only.py macos $(OBJECTS_ONLY)

# What is not installed is a failure here, not a test left out.
test-programs: $(VENV)/installed ## install real programs and compare what they do alone and recorded
	$(BIN)/python -m pip install --quiet $(KEPT_BUILD) --editable '.[test,programs]'
	HIWATER_TEST_ALL_PROGRAMS=1 $(BIN)/python -m pytest -m 'programs or not programs' tests/real_programs/test_real_programs.py tests/real_programs/test_real_allocators.py \
		tests/first_glance/test_installed.py

# A quarter of an hour for each interpreter: `make test-cpython WORDS='--only 3.13 test_gc test_signal'` chooses.
test-cpython: $(VENV)/installed ## compare CPython's regression suite plain and recorded, on every CPython that is found
	$(BIN)/python tools/test_cpython.py $(WORDS)

# Installs the projects into an environment of their own, in build/suites: `make test-suites WORDS='numpy pandas'` chooses.
test-suites: $(VENV)/installed ## compare parts of other projects' test suites plain and recorded
	$(BIN)/python tools/test_suites.py $(WORDS)

# Some ten minutes: `make test-long WORDS='--share 10 forks'` runs a tenth of one of them.
test-long: $(VENV)/installed ## 10⁹ allocations, 10⁵ threads, 10⁵ forks: time and memory for one more must not grow
	$(BIN)/python tests/stress/long_runs.py $(WORDS)

# Five minutes. Others at work on the machine disturb what is measured from outside; HIWATER_FIRST_TREE=1000 tries others.
test-sums: $(VENV)/installed ## the sums of 1,000 random trees of processes, against what is measured from outside
	HIWATER_TREES=1000 $(BIN)/python -m pytest -q tests/sums -n 2

test-leaks: $(VENV)/installed ## 20 programs, half of which leak, with 20 seeds each: none missed, none falsely flagged
	HIWATER_LEAK_SEEDS=20 $(BIN)/python -m pytest -q tests/leaks/test_leak_programs.py -n 2

# `make test-service-hour WORDS='--share 6'` runs ten minutes of it.
test-service-hour: $(VENV)/installed ## a service with 100,000 allocations a second for an hour: time, memory and capture must not grow
	$(BIN)/python tests/stress/long_runs.py service $(WORDS)

# An environment of its own, with torch for CPUs alone: `make test-services WORDS='gunicorn --requests 5000'`.
SERVICES := gunicorn uvicorn celery joblib filelock typing-extensions sympy networkx jinja2 fsspec
test-services: ## real services with several processes under load: their answers, reports and times, plain and recorded
	$(PYTHON) -m venv build/services
	build/services/bin/python -m pip install --quiet scikit-build-core nanobind $(BUILD_TOOLS)
	build/services/bin/python -m pip install --quiet $(KEPT_BUILD) '.[live]' $(SERVICES)
	build/services/bin/python -m pip install --quiet --no-deps torch==2.13.0
	build/services/bin/python tests/services/run_services.py $(WORDS)

# PYTHON is the interpreter that has torch. `make gpu WORDS='estimates page'` runs some checks alone, `--double` all that need no card.
gpu: ## try on this machine's GPU all that hiwater does with one, in at most eight minutes
	$(PYTHON) tools/on_a_gpu.py $(WORDS)

# For a machine that has CPython 3.12, torch and no network: carry build/gpu-wheels there and run tools/on_a_gpu.py.
GPU_PYTHON ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python) python3.12)
gpu-wheel: ## build a wheel for CPython 3.12, and fetch what notebooks need, into build/gpu-wheels
	rm -rf build/gpu-wheels
	$(GPU_PYTHON) -m venv build/gpu-builder
	build/gpu-builder/bin/python -m pip install --quiet scikit-build-core nanobind $(BUILD_TOOLS)
	build/gpu-builder/bin/python -m pip wheel --quiet $(KEPT_BUILD) --no-deps --wheel-dir build/gpu-wheels .
	build/gpu-builder/bin/python -m pip download --quiet --only-binary :all: --dest build/gpu-wheels ipykernel nbclient jsonschema-rs

# Environments of its own. zig compiles the engine, and comes from PyPI: no compiler is needed. `make wheels WORDS='--only 3.12 --twice'`.
wheels: ## build the source distribution and a wheel for each CPython that is found into dist, and check them
	$(PYTHON) tools/wheels.py $(WORDS)

# An hour and more, most of it for wheels: `make release-check WORDS='wheels readme'` checks parts again of what is in dist.
release-check: ## build a release, install each wheel where there is no compiler, and try all that is told of it
	$(PYTHON) tools/release_check.py $(WORDS)

# Needs no Python environment: a compiler and CMake. Each build has jobs of its own, whatever make was told.
define build-native-tests
cmake -S . -B $(NATIVE)-$(1) -DHIWATER_NATIVE_TESTS=ON -DHIWATER_ENGINE=OFF -DHIWATER_SANITIZE=$(2) >/dev/null
MAKEFLAGS= cmake --build $(NATIVE)-$(1) --parallel $$(nproc) >/dev/null
endef
NATIVE_TESTS := native/tests/native_tests

test-native: test-native-plain test-native-address test-native-thread ## test the engine's core: as it is, under ASan and UBSan, and its threads under TSan

test-native-plain:
	$(call build-native-tests,plain,)
	$(NATIVE)-plain/$(NATIVE_TESTS)

test-native-address:
	$(call build-native-tests,address,address)
	$(NATIVE)-address/$(NATIVE_TESTS)

test-native-thread:
	$(call build-native-tests,thread,thread)
	$(NATIVE)-thread/$(NATIVE_TESTS) --test-suite=threads

# LLVM makes other instructions of the same code than GCC, as for atomic operations. What is compared with the compiler's own unwinder is
# left out: LLVM's does not know all that GCC's does.
test-native-zig: $(ZIG)/installed ## test the engine's core as the compiler of the wheels makes it
	export PYTHONPATH=$(abspath $(ZIG)) && zig="$(abspath $(BIN))/python;-m;ziglang" && \
	    cmake -S . -B $(NATIVE)-zig -DHIWATER_NATIVE_TESTS=ON -DHIWATER_ENGINE=OFF "-DCMAKE_C_COMPILER=$$zig;cc" "-DCMAKE_CXX_COMPILER=$$zig;c++" >/dev/null && \
	    MAKEFLAGS= cmake --build $(NATIVE)-zig --parallel $$(nproc) >/dev/null
	$(NATIVE)-zig/$(NATIVE_TESTS) --test-suite-exclude=unwind

# Debian's g++-aarch64-linux-gnu and qemu-user-static. One trace in ten: the emulator takes fifty times as long. RLIMIT_AS, resident pages and
# the start times of processes are not the kernel's there; native stacks are walked on x86-64 alone.
EMULATOR_LACKS := a ceiling holds*,a limit that the program sets*,recorders that come at once*,what a living process recorded*,a mapping splits into*,heads are of the pages*
test-aarch64: ## test the engine's core for aarch64, under an emulator
	cmake -S . -B $(NATIVE)-aarch64 -DHIWATER_NATIVE_TESTS=ON -DHIWATER_ENGINE=OFF -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	    -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ >/dev/null
	MAKEFLAGS= cmake --build $(NATIVE)-aarch64 --parallel $$(nproc) >/dev/null
	HIWATER_TEST_SHARE=10 qemu-aarch64-static -L /usr/aarch64-linux-gnu $(NATIVE)-aarch64/$(NATIVE_TESTS) --test-suite-exclude=unwind \
	    --test-case-exclude='$(EMULATOR_LACKS)'

# The same emulator, debootstrap, and root. `make wheels WORDS='--only 3.11 --for aarch64'` comes before.
AARCH64 := build/aarch64
AARCH64_PYTHON := $(AARCH64)/venv/bin/python3
test-aarch64-engine: ## try the wheel for aarch64 under an emulator: what known programs hold, and programs that jump
	tools/aarch64_python.sh $(AARCH64) $(MIRROR)
	$(PYTHON) -m pip install --quiet --upgrade --only-binary :all: --target $(AARCH64)/venv/lib/python3.11/site-packages \
	    --implementation cp --python-version 3.11 --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
	    --platform manylinux_2_17_aarch64 dist/hiwater-*-cp311-cp311-manylinux_2_17_aarch64.whl pytest hypothesis
	$(AARCH64_PYTHON) tools/truth_probe.py
	$(AARCH64_PYTHON) -m hiwater doctor
	PATH="$(CURDIR)/$(AARCH64)/venv/bin:$$PATH" $(AARCH64_PYTHON) -m pytest -q -p no:cacheprovider $(patsubst %,tests/record/test_%.py,jumps moving_states raw_forks)

# What an emulator of programs lacks is in a machine with a kernel. `make test-aarch64-machine KERNEL=…` comes after the two above.
test-aarch64-machine: ## try the same wheel and the engine's core in an emulated machine, with a Linux kernel for aarch64
	tools/aarch64_machine.sh $(AARCH64) $(NATIVE)-aarch64/$(NATIVE_TESTS) $(KERNEL)

# gcc accepts what is an error to clang, and warns of less. Compiles nothing: the engine as it is installed is gcc's. What most files
# include is read once; gcc has shown that each includes what it needs.
CLANG_WARNINGS := -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow-all -Wextra-semi -Wmissing-noreturn -Wnewline-eof -Wunused \
    -Wno-unknown-attributes
PATHS := import nanobind, sysconfig; print("-isystem", nanobind.include_dir(), "-isystem", sysconfig.get_path("include"))
test-native-clang: $(VENV)/installed ## check the engine with clang's warnings
	mkdir -p build
	clang="clang++ -std=c++20 -Werror $(CLANG_WARNINGS) -I native $$($(BIN)/python -c '$(PATHS)')" && \
	    $$clang -x c++-header native/session/recorder.h -o $(NATIVE)-clang.pch && \
	    find native -name '*.cpp' -not -path 'native/tests/*' | xargs -P $$(nproc) -n 4 $$clang -fsyntax-only -include-pch $(NATIVE)-clang.pch

# Some two minutes. A small part is among the tests.
fuzz-unwind: ## read a million changed tables of the unwinder's under ASan and UBSan
	$(call build-native-tests,address,address)
	HIWATER_MUTANTS=1000000 $(NATIVE)-address/$(NATIVE_TESTS) --test-suite=unwind --test-case='tables that lie*'

# One trace in ten: valgrind takes fifty times as long.
test-valgrind: ## the same under valgrind's memcheck
	$(call build-native-tests,plain,)
	HIWATER_TEST_SHARE=10 valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
	    $(NATIVE)-plain/$(NATIVE_TESTS)

# An environment of its own: `make check-unwind WORDS='--seconds 60 torch polars'`.
check-unwind: ## walks of native stacks in torch, Arrow, Polars and others against the compiler's own unwinder
	$(PYTHON) -m venv build/check-unwind
	build/check-unwind/bin/python -m pip install --quiet scikit-build-core nanobind $(BUILD_TOOLS)
	build/check-unwind/bin/python -m pip install --quiet $(KEPT_BUILD) . numpy pandas scikit-learn pyarrow polars filelock typing-extensions sympy networkx jinja2 fsspec
	build/check-unwind/bin/python -m pip install --quiet --no-deps torch==2.13.0
	build/check-unwind/bin/python tests/stress/check_unwind.py $(WORDS)

stress: $(VENV)/installed ## half a minute of everything at once, recorded, with the engine checking itself
	$(BIN)/python tests/stress/stress.py

# Some two of them a second: `make stress-endings COUNT=10000 SEED=1`.
COUNT ?= 1000
SEED ?= 1
stress-endings: $(VENV)/installed ## random endings of programs whose captures others truncate, delete, move and share
	$(BIN)/python tests/stress/endings.py $(COUNT) $(SEED)

stress-kills: $(VENV)/installed ## 100 programs that are killed at any moment, and 40 readers at once of one that runs
	$(BIN)/python tests/stress/kills.py

# Three quarters of an hour on two cores of their own; 2,000 of them are among the tests: `make fuzz MUTANTS=20000 WORDS=7` has a seed.
MUTANTS ?= 100000
fuzz: $(VENV)/installed ## read 100,000 damaged and hostile captures with every verb and format, each in bounds of time and memory
	$(BIN)/python tests/stress/fuzz.py $(MUTANTS) $(WORDS)

# PYTHON is an interpreter with hiwater, torch, transformers 5.17, as the rows were measured with, and torchvision; none is downloaded.
score: ## estimate the programs that ran on real cards, and write the errors into the documentation
	$(PYTHON) benchmarks/estimate_score/score.py --write

check-memory: $(VENV)/installed ## compare the memory of five programs with the committed baseline, as `hiwater check` counts it
	$(BIN)/hiwater check

lint: $(VENV)/installed ## check style, types, imports between packages, formatting, words, and that JSON Schemas are what their types make
	$(BIN)/ruff check $(wildcard $(SOURCES))
	$(BIN)/ruff format --check $(wildcard $(SOURCES))
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/clang-format --dry-run --Werror $$(find native tests -name '*.h' -o -name '*.c' -o -name '*.cpp')
	$(BIN)/python tools/check_words.py
	$(BIN)/python tools/check_paths.py
	$(BIN)/python tools/schemas.py --check

schemas: $(VENV)/installed ## make the JSON Schemas from the types of the documents
	$(BIN)/python tools/schemas.py

format: $(VENV)/installed ## format all code
	$(BIN)/ruff check --fix-only --quiet $(wildcard $(SOURCES))
	$(BIN)/ruff format $(wildcard $(SOURCES))
	$(BIN)/clang-format -i $$(find native tests -name '*.h' -o -name '*.c' -o -name '*.cpp')

# An environment of its own: the site's tools read the source of hiwater, and need neither the engine nor its libraries.
DOCS := build/docs-env
$(DOCS)/installed: pyproject.toml $(LOCK)
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python $(INSTALL) --no-compile --extra docs
	@touch $@

docs: $(DOCS)/installed ## build the documentation site into build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

# For every CPython from 3.11 on: where a package has other versions for a newer one, each has its line.
lock: ## renew requirements/dev.txt, the versions of what the environments of the gate have
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet uv
	build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-annotate --custom-compile-command 'make lock' \
	    --extra test --extra lint --extra docs --group build --group cpu-frameworks --output-file $(LOCK) pyproject.toml

pictures: demo web/node_modules ## make the pictures of docs/page.md and docs/notebooks.md, in a real JupyterLab and Chromium
	node web/browser/pictures.mjs $(abspath $(OUT))/etl.html docs/images
	$(BIN)/python tests/helpers/jupyterlab_server.py examples/notebook.ipynb docs/images

bench-children: $(VENV)/installed ## 10,000 forked children of 5 ms: what one costs, and what they leave on the disk
	$(BIN)/python benchmarks/children.py --check --count 10000 forked

bench: $(VENV)/installed ## measure what recording costs, beside the peers that are installed
	$(BIN)/python benchmarks/run.py

bench-resident: $(VENV)/installed ## compare resident peaks of many programs with plain runs, and their memory with what is promised
	$(BIN)/python benchmarks/resident.py

bench-instructions: $(VENV)/installed ## count the engine's instructions for each event, under valgrind
	$(BIN)/python benchmarks/instructions.py

check-instructions: $(VENV)/installed ## compare the engine's instructions for some events with the committed ones
	$(BIN)/python benchmarks/instructions.py --check --count 10000

# The page is built by node from web/, and committed: neither an installation nor a build of the package needs node.
web/node_modules: web/package.json web/package-lock.json
	cd web && npm ci
	@touch $@

web: web/node_modules ## build the interactive report's page from web/
	cd web && npx prettier --write --log-level warn .
	cd web && node build.mjs

web-check: web/node_modules ## test the page's scripts, and compare the committed page with what its sources make
	cd web && npx prettier --check --log-level warn .
	cd web && node build.mjs --check
	cd web && npx tsc -p .
	cd web && node test.mjs

clean: ## remove what was built
	rm -rf build dist $(VENV) $(OUT) .mypy_cache .ruff_cache .pytest_cache .hypothesis
