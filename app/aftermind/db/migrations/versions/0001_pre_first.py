"""The first schema: memory, work and events.

Every key begins with the namespace, so that no reference crosses tenants. Ids are compared as bytes (COLLATE "C").
"""

from alembic import context, op

revision = "0001_pre_first"
down_revision = None
branch_labels = None
depends_on = None

MEMORY = """
CREATE TABLE aftermind.meta (
    key text PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE aftermind.users (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    forgets integer NOT NULL DEFAULT 0,
    indexing smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, user_id)
) WITH (fillfactor = 70);

CREATE TABLE aftermind.tombstones (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL,
    session_id text COLLATE "C",
    before timestamptz,
    ids uuid[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (namespace, user_id, id)
);

CREATE TABLE aftermind.episodes (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    session_id text COLLATE "C",
    agent_id text COLLATE "C",
    role text NOT NULL,
    name text,
    content text NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    occurred_at timestamptz NOT NULL,
    remembered_at timestamptz NOT NULL,
    position bigint NOT NULL,
    job_id uuid,
    mark text,
    terms bigint[] NOT NULL,
    embedding halfvec(%(dimension)d),
    indexed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (namespace, user_id, id)
);
CREATE INDEX episodes_session ON aftermind.episodes (namespace, user_id, session_id, position);
CREATE INDEX episodes_position ON aftermind.episodes (namespace, user_id, position);
-- Terms are keyed by their owner, so that a lookup reads that owner's rows alone. No pending list: every search would
-- have to read all of it.
CREATE INDEX episodes_terms ON aftermind.episodes USING gin (terms) WITH (fastupdate = off);
CREATE INDEX episodes_metadata ON aftermind.episodes USING gin (metadata jsonb_path_ops) WHERE metadata <> '{}';
-- Of big owners alone (users.indexing; see stores.postgres.indexing): the vectors of the others are compared one by
-- one, quicker than any walk, and an entry here costs ten times what all the rest of an episode costs (650 against
-- 6,400 a second). ef_construction: with 64, the default, finding 0.98 of the true ten of 100,000 takes half as long
-- again.
CREATE INDEX episodes_embedding ON aftermind.episodes USING hnsw (embedding halfvec_cosine_ops)
    WITH (ef_construction = 128) WHERE indexed;

CREATE TABLE aftermind.predicates (
    namespace text COLLATE "C" NOT NULL,
    predicate text COLLATE "C" NOT NULL,
    cardinality text NOT NULL,
    PRIMARY KEY (namespace, predicate)
);

CREATE TABLE aftermind.facts (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    session_id text COLLATE "C",
    agent_id text COLLATE "C",
    subject text COLLATE "C" NOT NULL,
    predicate text COLLATE "C" NOT NULL,
    object text NOT NULL,
    confidence double precision NOT NULL,
    cardinality text NOT NULL,
    valid_from timestamptz,
    valid_to timestamptz,
    recorded_at timestamptz NOT NULL,
    superseded_at timestamptz,
    superseded_by uuid,
    strength integer NOT NULL DEFAULT 1,
    extractor text NOT NULL,
    lexemes tsvector NOT NULL,
    embedding halfvec(%(dimension)d),
    PRIMARY KEY (namespace, user_id, id)
);
CREATE INDEX facts_believed ON aftermind.facts (namespace, user_id, recorded_at) WHERE superseded_at IS NULL;

CREATE TABLE aftermind.fact_sources (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    fact_id uuid NOT NULL,
    episode_id uuid NOT NULL,
    PRIMARY KEY (namespace, user_id, fact_id, episode_id),
    FOREIGN KEY (namespace, user_id, fact_id) REFERENCES aftermind.facts ON DELETE CASCADE
);
CREATE INDEX fact_sources_episode ON aftermind.fact_sources (namespace, user_id, episode_id);

-- How each episode was mined: no row yet means that it waits.
CREATE TABLE aftermind.extractions (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    episode_id uuid NOT NULL,
    outcome text NOT NULL,
    reason text,
    facts integer NOT NULL DEFAULT 0,
    extractor text NOT NULL,
    job_id uuid,
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, user_id, episode_id)
);

CREATE TABLE aftermind.blocks (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    agent_id text COLLATE "C",
    content text NOT NULL,
    description text NOT NULL DEFAULT '',
    version integer NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (namespace, user_id, name)
);

CREATE TABLE aftermind.summaries (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL DEFAULT '',
    text text NOT NULL,
    covers_to bigint NOT NULL,
    turns integer NOT NULL,
    updated_at timestamptz NOT NULL,
    summariser text NOT NULL,
    version integer NOT NULL,
    PRIMARY KEY (namespace, user_id, session_id)
);

CREATE TABLE aftermind.profiles (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (namespace, user_id)
);

CREATE TABLE aftermind.profile_traits (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    value jsonb NOT NULL,
    evidence uuid[] NOT NULL DEFAULT '{}',
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (namespace, user_id, name),
    FOREIGN KEY (namespace, user_id) REFERENCES aftermind.profiles ON DELETE CASCADE
);
"""

WORK = """
CREATE TABLE aftermind.jobs (
    id uuid PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C",
    agent_id text COLLATE "C",
    kind text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    payload jsonb NOT NULL DEFAULT '{}',
    raw bytea,
    effect_key text COLLATE "C" NOT NULL,
    slot smallint NOT NULL DEFAULT 0,
    turn bigint,
    weight integer NOT NULL DEFAULT 1,
    attempts integer NOT NULL DEFAULT 0,
    lost_leases integer NOT NULL DEFAULT 0,
    run_at timestamptz NOT NULL DEFAULT now(),
    due_by timestamptz,
    token uuid,
    worker text,
    lease_until timestamptz,
    reason_code text,
    error_class text,
    error text,
    fingerprint text,
    model text,
    answer jsonb,
    note text,
    origin_job_id uuid,
    replay_plan_id text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.05);

-- One unfinished job of an effect, and one successor behind it while it runs.
CREATE UNIQUE INDEX jobs_effect ON aftermind.jobs (namespace, kind, effect_key, slot)
    WHERE state IN ('queued', 'running', 'retrying');
-- The fair order of what may run now; see ledger.postgres.
CREATE INDEX jobs_ready ON aftermind.jobs (kind, turn, run_at)
    WHERE state IN ('queued', 'retrying') AND turn IS NOT NULL;
CREATE INDEX jobs_owner_turn ON aftermind.jobs (kind, namespace, user_id, turn)
    WHERE state IN ('queued', 'retrying') AND turn IS NOT NULL;
-- What waits for its time, and has no place in that order yet.
CREATE INDEX jobs_due ON aftermind.jobs (kind, run_at)
    WHERE state IN ('queued', 'retrying') AND turn IS NULL;
CREATE INDEX jobs_leases ON aftermind.jobs (lease_until) WHERE state = 'running';
-- At most one running job of these kinds in a session, whoever claims at the same moment.
CREATE UNIQUE INDEX jobs_one_running ON aftermind.jobs (kind, namespace, user_id, session_id) NULLS NOT DISTINCT
    WHERE state = 'running' AND kind IN ('extract', 'summarise', 'profile');
-- Turns accepted by Postgres that no store job has committed: a recall reads them.
CREATE INDEX jobs_unstored ON aftermind.jobs (namespace, user_id, created_at)
    WHERE raw IS NOT NULL AND kind = 'store' AND state IN ('queued', 'running', 'retrying');
CREATE INDEX jobs_dead ON aftermind.jobs (kind, fingerprint, updated_at) WHERE state = 'dead';
CREATE INDEX jobs_owner ON aftermind.jobs (namespace, user_id, created_at);
CREATE INDEX jobs_created ON aftermind.jobs USING brin (created_at) WITH (pages_per_range = 32);

CREATE TABLE aftermind.job_attempts (
    job_id uuid NOT NULL,
    number integer NOT NULL,
    worker text NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    outcome text,
    error_class text,
    error text,
    model text,
    tokens_in integer NOT NULL DEFAULT 0,
    tokens_out integer NOT NULL DEFAULT 0,
    cost_usd double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, number)
) WITH (fillfactor = 80);

-- Which job does the follow-up work of a store job: many turns may share one extraction.
CREATE TABLE aftermind.job_follows (
    follows uuid NOT NULL,
    kind text COLLATE "C" NOT NULL,
    job_id uuid NOT NULL,
    PRIMARY KEY (follows, kind, job_id)
);

CREATE TABLE aftermind.replay_plans (
    id text PRIMARY KEY,
    name text NOT NULL,
    reason text NOT NULL,
    actor text NOT NULL,
    mode text NOT NULL,
    filter jsonb NOT NULL DEFAULT '{}',
    overrides jsonb NOT NULL DEFAULT '{}',
    rate double precision NOT NULL,
    concurrency integer NOT NULL,
    max_failure_share double precision NOT NULL,
    state text NOT NULL,
    note text,
    frozen_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    resumed_at timestamptz,
    due_at timestamptz,
    finished_at timestamptz
);
CREATE INDEX replay_plans_open ON aftermind.replay_plans (frozen_at) WHERE state IN ('running', 'paused', 'aborted');

CREATE TABLE aftermind.replay_items (
    plan_id text NOT NULL REFERENCES aftermind.replay_plans ON DELETE CASCADE,
    job_id uuid NOT NULL,
    place integer NOT NULL,
    state text NOT NULL,
    new_job_id uuid,
    note text,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (plan_id, job_id)
);
CREATE INDEX replay_items_waiting ON aftermind.replay_items (plan_id, place) WHERE state = 'waiting';
CREATE INDEX replay_items_replayed ON aftermind.replay_items (plan_id) WHERE state = 'replayed';
CREATE INDEX replay_items_ended ON aftermind.replay_items (plan_id, updated_at) WHERE state IN ('done', 'failed');
CREATE INDEX replay_items_job ON aftermind.replay_items (job_id);
"""

EVENTS = """
CREATE TABLE aftermind.event_counters (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    last bigint NOT NULL,
    pruned_to bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, user_id)
) WITH (fillfactor = 50);

CREATE TABLE aftermind.events (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    event jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz,
    PRIMARY KEY (namespace, user_id, seq)
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX events_id ON aftermind.events (namespace, user_id, id);
CREATE INDEX events_unpublished ON aftermind.events (created_at) WHERE published_at IS NULL;
CREATE INDEX events_created ON aftermind.events USING brin (created_at) WITH (pages_per_range = 32);
"""


def upgrade() -> None:
    """Create everything. The vectors' dimension is given by whoever migrates."""
    dimension = int(context.config.attributes["dimension"])
    for part in (MEMORY % {"dimension": dimension}, WORK, EVENTS):
        for statement in part.split(";\n"):
            if statement.strip():
                op.execute(statement)
