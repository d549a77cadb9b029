# Every target does the set-up that it needs. Options: BACKEND=torch|ttnn|auto WEIGHTS=file (see README.md).
SHELL := /bin/bash
PYTHON := .venv/bin/python
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: help setup demo demo-dit test test-device-full bench bench-device lint lock clean

help:
	@echo "make demo | test | bench | lint | setup | demo-dit | bench-device | test-device-full | lock | clean"

setup:
	@bash scripts/setup.sh

demo: setup
	$(PYTHON) -m ttsp_ros.tools.demo $(if $(BACKEND),--backend $(BACKEND)) $(if $(WEIGHTS),--weights $(WEIGHTS))

demo-dit: setup
	$(PYTHON) -m ttsp_ros.tools.demo_dit

test: setup
	$(PYTHON) -m pytest

test-device-full: setup
	$(PYTHON) -m pytest test/tenstorrent --device-full

bench: setup
	$(PYTHON) -m ttsp_ros.tools.bench
	$(PYTHON) -m ttsp_ros.tools.bench_dit

bench-device: setup
	$(PYTHON) -m ttsp_ros.tools.bench_device

lint: setup
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	find kernels -name '*.?pp' -print0 | xargs -0 -r .venv/bin/clang-format --dry-run --Werror

lock: setup
	bash scripts/lock.sh

clean:
	rm -rf build install log generated .pytest_cache .mypy_cache .ruff_cache
