# Each target first installs what it needs; CONTRIBUTING.md describes the layers.

PYTHON ?= python3
WORKERS ?= 4
# Orchestrators that `make rehearse` rehearses: batch, eks or both. Default: both.
ORCHESTRATORS ?=
comma := ,
ifneq ($(filter-out batch eks both batch$(comma)eks eks$(comma)batch,$(ORCHESTRATORS)),)
$(error ORCHESTRATORS=$(ORCHESTRATORS) is unknown; set it to batch, eks or both)
endif
# PyTorch/XLA and TorchNeuron need separate deployments, as on AWS.
TORCHNEURON := python -m rehearsal run --instance-type trn2.48xlarge --neuron-release 2.33.0 \
  --workload llama-tiny --nodes 2 --folder build/rehearsal-torchneuron
RECEIPT := build/rehearsal-torchneuron/receipt.json
# With RETRY=1, as in CI, a failed test runs once more, alone. Only pytest's status 1 means that all
# tests ran.
RETRY ?=
AGAIN = || { test $$? -eq 1 && test -n "$(RETRY)" && echo "running the failed tests once more, alone" && \
  python -m pytest --last-failed --last-failed-no-failures none --maxfail 1; }
# Tests in one file share fixtures, such as a deployment, so one worker runs all of them.
PYTEST := python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# No command of this project may report usage.
export CDK_DISABLE_CLI_TELEMETRY := true
# If the shell turned bytecode off, each of the hundreds of processes of a test run or a rehearsal
# would compile this project again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-tests setup-programs setup-benchmarks check format test test-slow test-nxd rehearse rehearse-torchneuron synth bench bench-smoke diagram readme clean lock

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

LOCKED := requirements.txt requirements-rehearsal.txt constraints.txt constructs/pyproject.toml \
  emulators/pyproject.toml tools/cdk/package-lock.json tools/setup.py

setup: .venv/.rehearsal ## install what deploying, submitting and the rehearsal need, into .venv
setup-tests: .venv/.tests ## also install what tests and checks need
setup-programs: setup-tests build/programs/.done ## also install the public programs that test-slow runs, into build/programs
setup-benchmarks: setup build/baselines/.done ## also install the baselines of the benchmarks, into build/baselines
setup setup-tests setup-programs setup-benchmarks: ; @:

.venv/.rehearsal: $(LOCKED)
	@$(PYTHON) tools/setup.py rehearsal
	@touch $@

.venv/.tests: $(LOCKED) requirements-dev.txt tools/browser/package-lock.json tools/browser/unpack.mjs
	@$(PYTHON) tools/setup.py tests
	@touch $@ .venv/.rehearsal

build/programs/.done: .venv/.tests tests/programs/requirements.txt
	@$(PYTHON) tools/setup.py programs
	@touch $@

build/baselines/.done: .venv/.rehearsal benchmarks/requirements.txt
	@$(PYTHON) tools/setup.py benchmarks
	@touch $@

check: setup-tests ## check format, lint, types, import contracts, shell scripts and Dockerfiles
	ruff format --check .
	ruff check .
	mypy --num-workers 2
	PYTHONPATH=.:constructs:emulators lint-imports
	git ls-files '*.sh' .ci/run | xargs shellcheck
	git ls-files 'docker/**Dockerfile' | xargs hadolint

format: setup-tests ## format the code, and fix what the linter can fix
	ruff format .
	ruff check --fix .

test: check ## run the checks and all tests except the slow ones
	$(PYTEST) -m "not full and not programs" $(AGAIN)

test-slow: setup-programs $(RECEIPT) ## run the slow tests: whole rehearsals, public programs, wide matrices
	$(PYTEST) -m full $(AGAIN)

# Some slow tests read the receipts of `make rehearse`, whose last part writes this one.
$(RECEIPT): $(wildcard $(shell git ls-files '*.py' '*.sh' '*.json' ':!tests'))
	@$(MAKE) rehearse

test-nxd: ## test the NxD backend with AWS's public package: NXD_SOURCE=<folder that contains it>
	@$(PYTHON) tools/test_nxd.py

rehearse: setup ## deploy, run jobs, inject faults and destroy, without an AWS account (QUICK=1: one minute)
	python -m rehearsal run $(if $(QUICK),--quick) $(if $(ORCHESTRATORS),--orchestrators $(ORCHESTRATORS))
	$(if $(QUICK)$(ORCHESTRATORS),,$(TORCHNEURON) --set checks=sums,cache)

rehearse-torchneuron: setup ## rehearse only TorchNeuron on trn2, on an emulated device, with a kill and a resume
	$(TORCHNEURON)

synth: setup ## write the templates to cdk.out without touching AWS
	cdk synth --quiet

bench: setup-benchmarks ## run the side-by-side benchmarks, into build/bench.json
	python -m benchmarks

bench-smoke: setup-benchmarks ## run every benchmark once, to check that it runs
	python -m benchmarks --smoke

diagram: setup ## draw docs/architecture.svg from the synthesized templates of both orchestrators
	cdk synth --quiet --output build/diagram -c trainium:orchestrators=both \
	  -c trainium:eks_private=true -c trainium:eks_admin_arns=arn:aws:iam::111122223333:role/admin
	cd tools/diagram && node "$$(dirname "$$(readlink -f "$$(command -v node)")")/../lib/node_modules/npm/bin/npm-cli.js" ci --no-audit --no-fund --loglevel=error
	python tools/diagram/draw.py

readme: setup-tests ## regenerate the tables and schemas in docs
	PYTHONPATH=.:constructs python tools/readme.py

clean: ## remove everything that was built, except .venv
	rm -rf build cdk.out

lock: setup-programs setup-benchmarks ## write the installed versions to constraints.txt, after an upgrade
	{ echo "# Every transitive version; regenerate with: make lock"; \
	  { for folder in .venv build/baselines; do \
	      python -m pip --python $$folder/bin/python freeze --all --exclude-editable; \
	    done; \
	    python -m pip freeze --path build/programs/site; \
	  } | sed 's/^\(torch==[0-9.]*\)+cpu/\1/; /^pip==/d; /^torchvision==/d' | sort -f -t= -k1,1 | uniq; } > constraints.txt
