# One command from a fresh machine to each thing a person wants to see. Nothing is installed twice,
# so every target can be repeated.
#
#   make demo          train T5 on the local cluster, 2 nodes x 4 ranks, and draw its loss
#   make test          everything that CI runs: lint, types, all tests, those on real Slurm where possible
#   make test-quick    the tests without Slurm and without training ranks, for between two edits
#   make test-pythons  the tests that need no extra, on each Python from 3.10 to 3.14 that is found
#   make test-faults   break T5 by every fault in every phase, on real Slurm (root; half an hour)
#   make lint          ruff, mypy, shellcheck
#   make env           only the environment, with all that development needs
#   make slurm         keep a real Slurm cluster up on this machine, to try things by hand (root);
#                      SLURM=26.05 of another release, in a Debian root made for it;
#                      USERS="alex sam" with ordinary users, besides those of this machine
#   make docs          build docs/ into static pages, in build/docs; a broken link fails
#   make bench         measure (benchmarks/README.md)
#   make release       a wheel and an sdist with digests, SBOM and provenance (CONTRIBUTING.md)
#
#   PYTEST_ARGS="-k NAME -x" and DEMO_ARGS="--set training.steps=20" pass options on.

# The environment is .venv, unless VIRTUAL_ENV or PYTHON names another.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.SILENT:
.DEFAULT_GOAL := help
.PHONY: help env demo-env packages demo test test-quick test-pythons test-faults test-slurm test-releases test-torch lint docs \
    pictures release slurm slurm-down bench pins lock

# Not $(dir ...), which would split a path at its spaces.
ifdef PYTHON
export PATH := $(shell dirname "$(PYTHON)"):$(PATH)
else
ifndef VIRTUAL_ENV
VIRTUAL_ENV := $(CURDIR)/.venv
OWN_VENV := yes
endif
PYTHON := $(VIRTUAL_ENV)/bin/python
export PATH := $(VIRTUAL_ENV)/bin:$(PATH)
endif
# Thousands of processes import this checkout, and five pytests rewrite all assertions: once is enough.
unexport PYTHONDONTWRITEBYTECODE

SLURM_PACKAGES := slurmctld slurmd slurm-client slurmdbd slurm-wlm-basic-plugins \
    slurm-wlm-mysql-plugin munge mariadb-server iproute2 mmdebstrap
TEST_PACKAGES := $(SLURM_PACKAGES) shellcheck btrfs-progs chromium openssh-server tcsh ruby
# Of Slurm, e.g. 24.11 or 26.05; empty: the one that is installed on this machine.
SLURM ?= $(FSDPKIT_TEST_SLURM)
SLURM_ROOT := .slurm$(if $(SLURM),-$(SLURM))
export FSDPKIT_TEST_SLURM := $(SLURM)
DEMO_ARGS ?=
PYTEST_ARGS ?=
# Four more than there are cores: so many lanes mostly wait for Slurm, while others compute.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 8 ? cores + 4 : 12)))
IN_LANES = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --max-worker-restart=0
BENCH_ARGS ?=

# The first Python that can make a virtual environment; 3.11 first, which the tests run on.
define find_python
base=
for name in python3.11 python3 python3.12 python3.13 python3.14 python3.10; do
    if "$$name" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        base=$$name; break
    fi
done
if [[ -z $$base ]]; then
    echo "make: this needs Python 3.10 or later with its venv module (Debian: python3-venv)" >&2
    exit 1
fi
endef

# One every five seconds, until the recipe's shell ends.
define dots
leftover=
while sleep 5 >/dev/null 2>&1; do printf .; done &
trap "kill $$!; echo; rm -f \"\$$leftover\"" EXIT
endef

# torch's own index: PyPI's build is for CUDA and brings 3 GB, this one 200 MB.
TORCH_FOR_CPUS ?= https://download.pytorch.org/whl/cpu

# An environment with this checkout and the extras $(1), unless it is there. The stamp lies in it and
# names the checkout, which an editable install belongs to. pip would compile on one core, and what
# hardly any run imports; of the demo's packages, what it imports is compiled by importing it once.
define make_environment
if [[ -n "$(OWN_VENV)" && ! -x .venv/bin/pip ]]; then
    $(find_python)
    echo "make: $$base makes the environment .venv"
    "$$base" -m venv .venv
fi
prefix=$$("$(PYTHON)" -c 'import sys; print(sys.prefix)')
stamp=$$prefix/fsdpkit-environment
wanted="$(CURDIR) $$(cat pyproject.toml constraints.txt | cksum)"
found=$$(cat "$$stamp" 2>/dev/null || true)
if [[ $$found != "$$wanted dev" && $$found != "$$wanted $(1)" ]]; then
    printf %s "make: installing fsdpkit[$(1)] in $$prefix "
    $(dots)
    pip=("$(PYTHON)" -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt)
    packages=$$("$(PYTHON)" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    if [[ ! -e /proc/driver/nvidia && ! -d $$packages/torch ]]; then
        "$${pip[@]}" --no-deps --retries 0 --timeout 10 --index-url "$(TORCH_FOR_CPUS)" torch 2>/dev/null || true
    fi
    if ! "$${pip[@]}" -e '.[$(1)]'; then
        echo "make: pip stopped, for the reason above. Is there a network (PIP_INDEX_URL names an index)?" \
            "Is there room (1.1 GB)?" >&2
        exit 1
    fi
    if [[ $(1) == dev ]]; then
        "$(PYTHON)" -m compileall -qq -j 0 -x '/(tests?|pip|setuptools|networkx|fontTools)/' "$$packages" || true
    else
        "$(PYTHON)" -c 'import torch.distributed.checkpoint, torch.distributed.fsdp, matplotlib.pyplot' || true
    fi
    echo "$$wanted $(1)" >"$$stamp"
fi
endef

# Debian packages from $(1), where they can be installed.
define install_packages
missing=()
for package in $(1); do
    state=$$(dpkg-query -W -f='$${db:Status-Status}' "$$package" 2>/dev/null || true)
    if [[ $$state != installed ]]; then missing+=("$$package"); fi
done
if (( $${#missing[@]} > 0 && EUID == 0 )) && command -v apt-get >/dev/null; then
    printf %s "make: installing $${missing[*]} "
    $(dots)
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d # what is installed is not started, now or at boot: tests start their own
    if [[ ! -e $$policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$$policy"
        chmod 755 "$$policy"
        leftover=$$policy
    fi
    if ! said=$$({ apt-get -qq update && apt-get -qq install -y --no-install-recommends "$${missing[@]}"; } </dev/null 2>&1); then
        printf '\n%s\nmake: apt-get could not install them\n' "$$said" >&2
    elif command -v systemctl >/dev/null; then
        systemctl --quiet disable $$(dpkg -L "$${missing[@]}" | sed -n 's,.*/systemd/system/\([^/@]*\.\(service\|socket\)\)$$,\1,p') 2>/dev/null || true
    fi
fi
endef

help:
	sed -n '2,/^$$/ s/^#  //p' Makefile

env:
	$(call make_environment,dev)

# What the demo needs, in half a minute; `make env` completes it in place.
DEMO_EXTRAS := torch,plot
demo-env:
	$(call make_environment,$(DEMO_EXTRAS))

packages:
	$(call install_packages,$(TEST_PACKAGES))

demo: demo-env
	mkdir -p demo
	fsdpkit submit --cluster local --nodes 2 --gpus 4 --runs demo/runs --follow $(DEMO_ARGS) | tee demo/log.txt
	"$(PYTHON)" examples/plot_loss.py "demo/runs/$$(head -n 1 demo/log.txt)" --output demo/loss.png
	if [[ -n "$(OWN_VENV)" ]]; then echo "To look at it: source .venv/bin/activate; then"; fi
	echo "fsdpkit status --runs demo/runs; fsdpkit report demo/runs/$$(head -n 1 demo/log.txt)"

test: env packages
	$(MAKE) --no-print-directory lint & # on the core that the next line leaves free
	linting=$$!
	"$(PYTHON)" -m pytest --collect-only --quiet >/dev/null 2>&1 || true # compiled once, for all workers
	why=$$("$(PYTHON)" -c 'from tests.slurm_cluster import unavailable_reason as why; print(why() or "")')
	if [[ -n $$why ]]; then echo "make test: left out, what runs on a real Slurm cluster: $$why"; fi
	status=0
	"$(PYTHON)" -m pytest $(IN_LANES) -p tests.packaging.ran_on_slurm $(PYTEST_ARGS) || status=$$?
	if ! wait $$linting; then echo "make test: lint failed, see above" >&2; status=1; fi
	exit $$status

# Its lanes compute; one more than there are cores waits for files.
test-quick: WORKERS = $(shell echo $$(($$(nproc) + 1)))
test-quick: env
	"$(PYTHON)" -m pytest $(IN_LANES) \
	    -m 'not slurm and not newest_slurm and not torch and not local' $(PYTEST_ARGS)

# What whoever only submits needs, in an environment for each Python; uv brings those that lack, and
# pyenv has some that are not on PATH. Benchmarks, trackers and wheels are tried where torch is.
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
PYTHONS_AT = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fsdpkit-pythons
test-pythons: WORKERS = $(shell echo $$(($$(nproc) + 1)))
test-pythons:
	if command -v pyenv >/dev/null; then PYENV_VERSION=$$(pyenv versions --bare | paste -sd:); export PYENV_VERSION; fi
	status=0
	for version in $(PYTHONS); do
	    home=$(PYTHONS_AT)/$$version
	    if [[ ! -x $$home/bin/python ]]; then
	        if command -v uv >/dev/null; then
	            uv venv --quiet --seed --python "$$version" "$$home" || true
	        elif "python$$version" -c 'import ensurepip' 2>/dev/null; then
	            "python$$version" -m venv "$$home"
	        fi
	    fi
	    if [[ ! -x $$home/bin/python ]]; then
	        echo "make test-pythons: left out, Python $$version, which is not found here" >&2
	        continue
	    fi
	    "$$home/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[unit]'
	    "$$home/bin/python" -m tests.packaging.without_extras
	    echo "make test-pythons: Python $$version"
	    PATH="$$home/bin:$$PATH" "$$home/bin/python" -m pytest -p tests.packaging.without_extras $(IN_LANES) \
	        --ignore tests/benchmarks --ignore tests/sweeps/test_study_pictures.py \
	        --ignore tests/tracking --ignore tests/packaging/test_wheel.py \
	        -m 'not slurm and not newest_slurm and not torch and not local and not packages' $(PYTEST_ARGS) || status=1
	done
	exit $$status

# The tests that ask Slurm, on one release of it.
test-slurm: env packages
	FSDPKIT_REQUIRE_SLURM=1 "$(PYTHON)" -m pytest -m "slurm or newest_slurm" $(PYTEST_ARGS)

# The tests that start torch, on the release TORCH, with the table in CONTRIBUTING.md.
TORCH_ENVIRONMENT = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fsdpkit-torch/$(TORCH)
test-torch:
	if [[ -z "$(TORCH)" ]]; then echo "make test-torch: name a release, such as TORCH=2.15.0" >&2; exit 2; fi
	if [[ ! -x "$(TORCH_ENVIRONMENT)/bin/torchrun" ]]; then
	    $(find_python)
	    "$$base" -m venv "$(TORCH_ENVIRONMENT)"
	fi
	$(MAKE) --no-print-directory env PYTHON="$(TORCH_ENVIRONMENT)/bin/python" OWN_VENV=
	"$(TORCH_ENVIRONMENT)/bin/python" -m pip install --quiet --no-compile "torch==$(TORCH)"
	"$(TORCH_ENVIRONMENT)/bin/python" -m tests.training.torch_releases -- $(PYTEST_ARGS)

# On every release, with the table in CONTRIBUTING.md.
test-releases: env packages
	"$(PYTHON)" -m tests.slurm.releases -- $(PYTEST_ARGS)

test-faults: env packages
	FSDPKIT_ALL_FAULTS=1 FSDPKIT_REQUIRE_SLURM=1 "$(PYTHON)" -m pytest tests/faults $(PYTEST_ARGS)

lint: env
	"$(PYTHON)" -m ruff check .
	"$(PYTHON)" -m ruff format --check .
	"$(PYTHON)" -m mypy
	if command -v shellcheck >/dev/null; then
	    shellcheck .ci/run
	else
	    echo "make lint: left out, shellcheck, which is not installed"
	fi

# Beside whatever is in the environment: only who builds the pages needs what builds them.
docs: demo-env
	"$(PYTHON)" -c 'import material, mkdocs_click, mkdocstrings' 2>/dev/null || "$(PYTHON)" -m pip install --quiet \
	    --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 "$(PYTHON)" -m mkdocs build --strict --site-dir "$(CURDIR)/build/docs"
	echo "make docs: the pages are in build/docs; open build/docs/index.html"

# Those in docs/pictures that show a run, a plan, the catalogue and studies; the studies are only
# drawn: on an idle machine, `python -m benchmarks.study_pictures run` measures them.
pictures: env packages
	for what in tests.docs.run_pictures tests.docs.plan_picture tests.publishing.catalogue_pictures; do
	    "$(PYTHON)" -m $$what
	done
	"$(PYTHON)" -m benchmarks.study_pictures draw

# A wheel and an sdist that pass the wheel's tests, in build/release. Nothing is uploaded.
release: env
	"$(PYTHON)" -m tests.packaging.release

slurm: env packages
	echo "make slurm: it starts a Slurm cluster on this machine; the first time that takes minutes" >&2
	if ! running=$$("$(PYTHON)" -m tests.slurm_cluster status --root $(SLURM_ROOT)); then
	    running=$$("$(PYTHON)" -m tests.slurm_cluster up --root $(SLURM_ROOT) \
	        $(if $(USERS),--users $(USERS)))
	fi
	grep -v '^#' <<<"$$running"
	echo "# Paste the export line; then: fsdpkit submit --nodes 2 --gpus 4"
	echo "# Down again with: make slurm-down$(if $(SLURM), SLURM=$(SLURM))"

slurm-down: env
	"$(PYTHON)" -m tests.slurm_cluster down --root $(SLURM_ROOT)

bench: env packages
	missed=0
	for what in launch training checkpoints faults overhead operate plan catalogue stage; do
	    "$(PYTHON)" benchmarks/$$what.py $(BENCH_ARGS) || missed=1
	done
	exit $$missed

# constraints.txt from the newest versions that pyproject.toml allows; torch stays where it is.
pins:
	$(find_python)
	fresh=$$(mktemp -d)
	trap 'rm -rf "$$fresh"' EXIT
	torch=$$(grep '^torch==' constraints.txt)
	"$$base" -m venv "$$fresh"
	"$$fresh/bin/pip" install --quiet "$$torch" -e '.[dev,docs]'
	{
	    sed -n '/^#/p' constraints.txt
	    echo "$$torch"
	    "$$fresh/bin/pip" freeze --exclude-editable --exclude torch \
	        | sed 's/$$/ ; python_version >= "3.11"/' | sort -f
	} >"$$fresh/constraints.txt"
	cp "$$fresh/constraints.txt" constraints.txt

# locked.txt: the same versions with digests, for what fsdpkit needs and what builds it; no torch.
lock:
	$(find_python)
	fresh=$$(mktemp -d)
	trap 'rm -rf "$$fresh"' EXIT
	"$$base" -m venv "$$fresh"
	"$$fresh/bin/pip" install --quiet uv
	sed -n '/^dependencies = \[/,/^\]/s/^ *"\(.*\)",.*/\1/p; s/^requires = \["\(.*\)"\]/\1/p' pyproject.toml >"$$fresh/wanted.in"
	{
	    sed -n '1,/^$$/p' locked.txt
	    "$$fresh/bin/uv" pip compile --quiet --universal --python-version 3.10 --generate-hashes \
	        --no-header --no-annotate -c constraints.txt "$$fresh/wanted.in"
	} >"$$fresh/locked.txt"
	cp "$$fresh/locked.txt" locked.txt
