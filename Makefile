# `make rehearse` and `make test` set themselves up; everything else builds on .venv.

PYTHON ?= python3
WORKERS ?= 4
# Which halves `make rehearse` rehearses: batch, eks or both; empty: both.
ORCHESTRATORS ?=
comma := ,
ifneq ($(filter-out batch eks both batch$(comma)eks eks$(comma)batch,$(ORCHESTRATORS)),)
$(error ORCHESTRATORS=$(ORCHESTRATORS) is unknown; give batch, eks or both)
endif
# A file's tests share what it made, a deployment for example, so one worker runs them all.
PYTEST := python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# No command of this project reports usage to anyone.
export CDK_DISABLE_CLI_TELEMETRY := true
# Where a shell turns byte code off, each of the hundreds of processes of a test run or a rehearsal
# would compile this project again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-tests setup-programs setup-benchmarks check format test test-slow test-nxd rehearse synth bench bench-smoke diagram readme clean lock

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

LOCKED := requirements.txt requirements-rehearsal.txt constraints.txt constructs/pyproject.toml \
  emulators/pyproject.toml tools/cdk/package-lock.json tools/setup.py

setup: .venv/.rehearsal ## what deploying, submitting and the rehearsal need, into .venv (at once if nothing changed)
setup-tests: .venv/.tests ## and what tests and checks need beside it
setup-programs: setup-tests build/programs/.done ## and the public programs that test-slow runs, into build/programs
setup-benchmarks: setup build/baselines/.done ## and what benchmarks compare with, into build/baselines
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

check: setup-tests ## format, lint, types, import contracts, shell scripts, Dockerfiles
	ruff format --check .
	ruff check .
	mypy --num-workers 2
	PYTHONPATH=.:constructs:emulators lint-imports
	git ls-files '*.sh' .ci/run | xargs shellcheck
	git ls-files 'docker/**Dockerfile' | xargs hadolint

format: setup-tests ## rewrite to the house format
	ruff format .
	ruff check --fix .

test: check ## all tests but the slow ones; CI runs both
	$(PYTEST) -m "not full and not programs"

test-slow: setup-programs ## what test leaves out: whole rehearsals, public programs, slow matrices
	$(PYTEST) -m full

test-nxd: ## the NxD back-end on the real, public package: NXD_SOURCE=<folder that holds it>
	@$(PYTHON) tools/test_nxd.py

rehearse: setup ## deploy, run on local nodes, destroy, prove it; no AWS account (QUICK=1: one minute)
	python -m rehearsal run $(if $(QUICK),--quick) $(if $(ORCHESTRATORS),--orchestrators $(ORCHESTRATORS))

synth: setup ## write the templates to cdk.out without touching AWS
	cdk synth --quiet

bench: setup-benchmarks ## side-by-side benchmarks, into build/bench.json
	python -m benchmarks

bench-smoke: setup-benchmarks ## every benchmark once, to see that it runs
	python -m benchmarks --smoke

diagram: setup ## draw docs/architecture.svg from the synthesised templates, of both orchestrators
	cdk synth --quiet --output build/diagram -c trainium:orchestrators=both \
	  -c trainium:eks_private=true -c trainium:eks_admin_arns=arn:aws:iam::111122223333:role/admin
	cd tools/diagram && node "$$(dirname "$$(readlink -f "$$(command -v node)")")/../lib/node_modules/npm/bin/npm-cli.js" ci --no-audit --no-fund --loglevel=error
	python tools/diagram/draw.py

readme: setup-tests ## renew the generated tables and schemas below docs
	PYTHONPATH=.:constructs python tools/readme.py

clean: ## remove what was built, keep .venv
	rm -rf build cdk.out

lock: setup-programs setup-benchmarks ## write constraints.txt from what is installed, after a version was raised
	{ echo "# Every transitive version; regenerate with: make lock"; \
	  { for folder in .venv build/baselines; do \
	      python -m pip --python $$folder/bin/python freeze --all --exclude-editable; \
	    done; \
	    python -m pip freeze --path build/programs/site; \
	  } | sed 's/^\(torch==[0-9.]*\)+cpu/\1/; /^pip==/d; /^torchvision==/d' | sort -f -t= -k1,1 | uniq; } > constraints.txt
