"""The initial schema.

The namespace is the first column of every key of a tenant's rows, so that no reference crosses tenants. Ids compare as
bytes (COLLATE "C"). Roles, row-level security policies and grants follow in `db.row_level_security`, which is applied
after every migration. A table that takes many updates has a fillfactor below 100, so that an update stays on its page.
"""

import re

from alembic import context, op

revision = "0001_initial"
down_revision = None
branch_labels = None
depends_on = None

META = """
-- Which embedder made `episodes.embedding` (key `active_embedder`) and, during a re-embedding,
-- `episodes.embedding_standby` (key `standby_embedder`): its name, dimension and revision, a line each.
CREATE TABLE aftermind.meta (
    key text PRIMARY KEY,
    value text NOT NULL
);
"""

USERS = """
CREATE TABLE aftermind.users (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    tombstone_count integer NOT NULL DEFAULT 0,
    index_state smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, user_id)
) WITH (fillfactor = 70);
CREATE INDEX users_with_tombstones ON aftermind.users (namespace, user_id) WHERE tombstone_count > 0;

CREATE TABLE aftermind.retention_policies (
    namespace text COLLATE "C" PRIMARY KEY,
    max_age interval,
    max_episodes integer,
    keep_important boolean NOT NULL DEFAULT false,
    archive text,
    updated_at timestamptz NOT NULL DEFAULT now(),
    ran_at timestamptz
);

-- The data keys of encrypted namespaces, each wrapped by a key that is not in the database.
CREATE TABLE aftermind.data_keys (
    namespace text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    generation integer NOT NULL,
    state text NOT NULL,
    wrapped bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, id)
);
"""

EPISODES = """
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
    stored_at timestamptz NOT NULL DEFAULT now(),
    position bigint NOT NULL,
    counted_from bigint,
    shift bigint,
    job_id uuid,
    mark text,
    keep text[],
    terms bigint[] NOT NULL,
    embedding halfvec(%(dimension)d),
    embedding_standby halfvec,
    passages integer[],
    passage_terms bigint[],
    passage_embedding halfvec[],
    passage_embedding_standby halfvec[],
    indexed boolean NOT NULL DEFAULT false,
    expires_at timestamptz,
    PRIMARY KEY (namespace, user_id, id)
);
CREATE INDEX episodes_session ON aftermind.episodes (namespace, user_id, session_id, position);
CREATE INDEX episodes_position ON aftermind.episodes (namespace, user_id, position);
CREATE INDEX episodes_stored ON aftermind.episodes (namespace, user_id, stored_at, position);
CREATE INDEX episodes_expiring ON aftermind.episodes (namespace, expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX episodes_passages ON aftermind.episodes (namespace, user_id, position) WHERE passages IS NOT NULL;
-- A term begins with a hash of its owner: a lookup reads rows of that owner only, on pages that the owner's other terms
-- share. fastupdate is off because every
-- search would have to read the whole pending list.
CREATE INDEX episodes_terms ON aftermind.episodes USING gin (terms) WITH (fastupdate = off);
CREATE INDEX episodes_metadata ON aftermind.episodes USING gin (metadata jsonb_path_ops) WHERE metadata <> '{}';
-- Only for users with many episodes (users.index_state; see stores.postgres.vector_index). For the others an exact scan
-- is faster than any walk of the graph, and an entry here costs ten times as much as the rest of an episode (650
-- against 6,400 per second). ef_construction: with the default of 64, a search that finds 0.98 of the true ten nearest
-- of 100,000 takes half as long again.
CREATE INDEX episodes_embedding ON aftermind.episodes USING hnsw (embedding halfvec_cosine_ops)
    WITH (ef_construction = 128) WHERE indexed;

-- What a search reads. Under row-level security Postgres checks the policy before any condition whose function is not
-- marked leakproof, and then no index on terms or vectors can serve: a search would read the whole table. The owner of
-- the view may see all rows, and the view shows those of the transaction's tenant, by a function call that no index
-- matches. `OFFSET 0` is left to the search: inside the view it would keep the index out as well.
CREATE VIEW aftermind.searchable_episodes AS
    SELECT id, namespace, user_id, session_id, agent_id, role, metadata, occurred_at, remembered_at, position,
           terms, embedding, indexed
    FROM aftermind.episodes
    WHERE texteq(namespace, (SELECT NULLIF(current_setting('aftermind.namespace', true), '')));

-- Workers cannot write `meta`. A database without vectors adopts another embedder of the same dimension; another
-- dimension changes the table, which only its owner can do.
CREATE FUNCTION aftermind.adopt_embedder(wanted text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF EXISTS (SELECT FROM aftermind.meta WHERE key = 'active_embedder' AND value = wanted) THEN
            RETURN true;
        ELSIF EXISTS (SELECT FROM aftermind.meta WHERE key = 'standby_embedder')
              OR NOT EXISTS (SELECT FROM aftermind.meta WHERE key = 'active_embedder'
                             AND split_part(value, E'\\n', -2) = split_part(wanted, E'\\n', -2))
              OR EXISTS (SELECT FROM aftermind.episodes WHERE embedding IS NOT NULL) THEN
            RETURN false;
        END IF;
        LOCK TABLE aftermind.episodes IN SHARE ROW EXCLUSIVE MODE;
        IF EXISTS (SELECT FROM aftermind.episodes WHERE embedding IS NOT NULL) THEN
            RETURN false;
        END IF;
        UPDATE aftermind.meta SET value = wanted WHERE key = 'active_embedder';
        RETURN true;
    END
$$;
REVOKE ALL ON FUNCTION aftermind.adopt_embedder FROM PUBLIC;

-- Namespaces with messages that have expired, for the janitor, which reads episodes tenant by tenant.
CREATE FUNCTION aftermind.expired_namespaces() RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'SELECT DISTINCT namespace FROM aftermind.episodes WHERE expires_at <= now()';
REVOKE ALL ON FUNCTION aftermind.expired_namespaces FROM PUBLIC;
"""

ERASURE = """
-- Erasures in their order, without a clock.
CREATE SEQUENCE aftermind.generation;
SELECT setval('aftermind.generation', 1);

-- The number of the next erasure. `known` is the highest number that a process has received, in case a failover lost
-- the newest numbers of the sequence. SECURITY DEFINER: no other role can set the sequence back. `known` comes from
-- Redis, through an agent's role, so it is bounded: a failover or an older backup lacks one number for each erasure
-- since, 2^32 of them is more than any deployment makes, and 2^31 calls with the largest accepted number do not reach
-- the end of the sequence.
-- Until the erasure has ended, an advisory lock shows a number below its own to `generation_floor`.
CREATE FUNCTION aftermind.next_generation(known bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DECLARE number bigint;
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(1634100589, (last_value % 2147483648)::int) FROM aftermind.generation;
        number := nextval('aftermind.generation');
        IF known > number + 4294967296 THEN
            RAISE EXCEPTION 'generation % was never given; the last one is %', known, number USING ERRCODE = 'AM001';
        END IF;
        IF number <= known THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('aftermind.generation', 0));
            number := nextval('aftermind.generation');
            IF number <= known THEN
                number := setval('aftermind.generation', known + 1);
            END IF;
        END IF;
        RETURN number;
    END
$$;

CREATE TABLE aftermind.tombstones (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    generation bigint NOT NULL,
    at timestamptz NOT NULL,
    session_id text COLLATE "C",
    before timestamptz,
    ids uuid[] NOT NULL DEFAULT '{}',
    member text COLLATE "C",
    by_policy boolean NOT NULL DEFAULT false,
    delivered boolean NOT NULL,
    PRIMARY KEY (namespace, user_id, id)
);
CREATE INDEX tombstones_undelivered ON aftermind.tombstones (namespace, user_id) WHERE NOT delivered;

-- The highest number below every erasure that Redis may not have, also below those that are not committed: first what
-- was given is read, then what has not ended, then what is committed, so that no erasure is missed in between. An
-- agent's role sees the tombstones of its own tenant only.
CREATE FUNCTION aftermind.generation_floor() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        given bigint := (SELECT last_value FROM aftermind.generation);
        running bigint;
        undelivered bigint;
    BEGIN
        SELECT max((given - objid::bigint) & 2147483647) INTO running FROM pg_locks
        WHERE locktype = 'advisory' AND classid = 1634100589 AND objsubid = 2
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
        SELECT min(generation) - 1 INTO undelivered FROM aftermind.tombstones WHERE NOT delivered;
        RETURN least(given - running, coalesce(undelivered, given));
    END
$$;
"""

LEARNING = """
-- How each episode was mined; an episode without a row is still to be mined.
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

-- Which episodes one call of a model received together.
CREATE TABLE aftermind.model_batches (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    job_id uuid NOT NULL,
    kind text COLLATE "C" NOT NULL,
    session_id text COLLATE "C",
    episode_ids uuid[] NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, user_id, job_id)
);

-- The cardinality that a namespace has set for a predicate.
CREATE TABLE aftermind.predicates (
    namespace text COLLATE "C" NOT NULL,
    predicate text COLLATE "C" NOT NULL,
    cardinality text NOT NULL,
    PRIMARY KEY (namespace, predicate)
);

-- Coefficients of the ranking that a namespace has fitted to its own questions, by the key of the embedder.
CREATE TABLE aftermind.ranking_models (
    namespace text COLLATE "C" NOT NULL,
    embedder text COLLATE "C" NOT NULL,
    models text NOT NULL,
    fitted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, embedder)
);

-- What was said; what is believed (`facts`) is computed from it. `subject_key` is a hash of the owner and the
-- normalised subject (stores.postgres.owner_term_keys). Sources are an array and not rows, because only a forget looks
-- up assertions by episode, and it reads all of one owner's anyway.
CREATE TABLE aftermind.assertions (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    subject_key bigint NOT NULL,
    subject text NOT NULL,
    predicate text COLLATE "C" NOT NULL,
    object text NOT NULL,
    operation text NOT NULL,
    said_at timestamptz NOT NULL,
    valid_from timestamptz,
    valid_to timestamptz,
    latest_at timestamptz,
    confidence double precision NOT NULL,
    cardinality text,
    sources uuid[] NOT NULL,
    place integer NOT NULL,
    extractor text NOT NULL,
    PRIMARY KEY (namespace, user_id, id)
);
CREATE INDEX assertions_subject ON aftermind.assertions (namespace, user_id, subject_key);

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
    terms bigint[] NOT NULL,
    embedding halfvec(%(dimension)d),
    PRIMARY KEY (namespace, user_id, id)
);
CREATE INDEX facts_believed ON aftermind.facts (namespace, user_id, recorded_at) WHERE superseded_at IS NULL;
CREATE INDEX facts_terms ON aftermind.facts USING gin (terms) WITH (fastupdate = off);

-- To facts what `searchable_episodes` is to episodes, for the same reason.
CREATE VIEW aftermind.searchable_facts AS
    SELECT id, namespace, user_id, valid_from, valid_to, recorded_at, superseded_at, terms
    FROM aftermind.facts
    WHERE texteq(namespace, (SELECT NULLIF(current_setting('aftermind.namespace', true), '')));

CREATE TABLE aftermind.fact_sources (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    fact_id uuid NOT NULL,
    episode_id uuid NOT NULL,
    PRIMARY KEY (namespace, user_id, fact_id, episode_id),
    FOREIGN KEY (namespace, user_id, fact_id) REFERENCES aftermind.facts ON DELETE CASCADE
);
CREATE INDEX fact_sources_episode ON aftermind.fact_sources (namespace, user_id, episode_id);

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

CREATE TABLE aftermind.items (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    content text NOT NULL,
    vectors bytea,
    dimension integer,
    ttl interval,
    expires_at timestamptz,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (namespace, user_id, name)
);

CREATE TABLE aftermind.summaries (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL DEFAULT '',
    text text NOT NULL,
    covers_to bigint NOT NULL,
    messages integer NOT NULL,
    updated_at timestamptz NOT NULL,
    summariser text NOT NULL,
    version integer NOT NULL,
    last_message_at timestamptz,
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
    last_message_at timestamptz,
    PRIMARY KEY (namespace, user_id, name),
    FOREIGN KEY (namespace, user_id) REFERENCES aftermind.profiles ON DELETE CASCADE
);

-- Episodes that the next update of a profile reads.
CREATE TABLE aftermind.profile_backlog (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    episode_id uuid NOT NULL,
    PRIMARY KEY (namespace, user_id, episode_id)
);
"""

JOBS = """
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
    edited bytea,
    position bigint,
    counted_from bigint,
    effect_key text COLLATE "C" NOT NULL,
    slot smallint NOT NULL DEFAULT 0,
    queue_position bigint,
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
    former_state text,
    action_id uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.05);
-- One unfinished job per effect, and one successor (slot 1) while it runs.
CREATE UNIQUE INDEX jobs_effect ON aftermind.jobs (namespace, kind, effect_key, slot)
    WHERE state IN ('queued', 'running', 'retrying');
-- The fair order of runnable jobs: of everything, of each owner, of each namespace; see ledger.postgres.
CREATE INDEX jobs_ready ON aftermind.jobs (kind, queue_position, run_at)
    WHERE state IN ('queued', 'retrying') AND queue_position IS NOT NULL;
CREATE INDEX jobs_owner_position ON aftermind.jobs (kind, namespace, user_id, queue_position)
    WHERE state IN ('queued', 'retrying') AND queue_position IS NOT NULL;
CREATE INDEX jobs_namespace_position ON aftermind.jobs (kind, namespace, queue_position, run_at)
    WHERE state IN ('queued', 'retrying') AND queue_position IS NOT NULL;
-- Scheduled jobs, which have no place in that order before run_at.
CREATE INDEX jobs_due ON aftermind.jobs (kind, run_at)
    WHERE state IN ('queued', 'retrying') AND queue_position IS NULL;
CREATE INDEX jobs_leases ON aftermind.jobs (lease_until) WHERE state = 'running';
-- At most one running job of these kinds per session, even if two workers claim at the same moment.
CREATE UNIQUE INDEX jobs_one_running ON aftermind.jobs (kind, namespace, user_id, session_id) NULLS NOT DISTINCT
    WHERE state = 'running' AND kind IN ('extract', 'summarise', 'profile');
-- Turns that Postgres accepted and no store job has committed yet: a recall reads them.
CREATE INDEX jobs_unstored ON aftermind.jobs (namespace, user_id, created_at)
    WHERE raw IS NOT NULL AND kind = 'store' AND state IN ('queued', 'running', 'retrying');
-- The last of them in each session: the next one follows it.
CREATE INDEX jobs_unstored_position ON aftermind.jobs (namespace, user_id, coalesce(session_id, ''), position)
    WHERE raw IS NOT NULL AND kind = 'store' AND state IN ('queued', 'running', 'retrying');
CREATE INDEX jobs_dead ON aftermind.jobs (kind, fingerprint, updated_at) WHERE state = 'dead';
-- An operator's action is taken back as a whole.
CREATE INDEX jobs_action ON aftermind.jobs (action_id) WHERE action_id IS NOT NULL;
CREATE INDEX jobs_owner ON aftermind.jobs (namespace, user_id, created_at);
CREATE INDEX jobs_created ON aftermind.jobs USING brin (created_at) WITH (pages_per_range = 32);

CREATE TABLE aftermind.job_attempts (
    namespace text COLLATE "C" NOT NULL,
    job_id uuid NOT NULL,
    number integer NOT NULL,
    worker text NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    outcome text,
    error_class text,
    error text,
    model text,
    calls integer NOT NULL DEFAULT 0,
    tokens_in integer NOT NULL DEFAULT 0,
    tokens_out integer NOT NULL DEFAULT 0,
    cost_usd double precision NOT NULL DEFAULT 0,
    latency_ms double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, number)
) WITH (fillfactor = 80);
-- Pruning selects attempts by age alone, and they are stored in the order in which they started.
CREATE INDEX job_attempts_started ON aftermind.job_attempts USING brin (started_at) WITH (pages_per_range = 32);

-- Which job does the follow-up work of a store job: many turns can share one extraction.
CREATE TABLE aftermind.job_followups (
    namespace text COLLATE "C" NOT NULL,
    followed_job_id uuid NOT NULL,
    kind text COLLATE "C" NOT NULL,
    job_id uuid NOT NULL,
    PRIMARY KEY (followed_job_id, kind, job_id)
);

-- Jobs that workers do not claim; '' stands for every namespace, or every kind.
CREATE TABLE aftermind.job_pauses (
    namespace text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    actor text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, kind)
);

-- Pauses that were ended, discards of jobs (`job_id`) that were restored, and waits of jobs whose claim was given back
-- (`ended_by` NULL): why a job waited, for its timeline.
CREATE TABLE aftermind.hold_history (
    namespace text COLLATE "C" NOT NULL,
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    kind text COLLATE "C" NOT NULL,
    job_id uuid,
    reason text NOT NULL,
    created_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_by text
);
CREATE INDEX hold_history_job ON aftermind.hold_history (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX hold_history_ended ON aftermind.hold_history (ended_at);
CREATE INDEX hold_history_pauses ON aftermind.hold_history (namespace, kind, ended_at) WHERE job_id IS NULL;

-- Samples of the metrics of the whole deployment, a minute or an hour each; see db.metric_history.
CREATE TABLE aftermind.metric_history (
    seconds integer NOT NULL,
    at timestamptz NOT NULL,
    series jsonb NOT NULL,
    PRIMARY KEY (seconds, at)
);

-- Recalls that processes have counted, until the reconciler adds them to the history.
CREATE TABLE aftermind.recall_counts (
    namespace text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    served_by text NOT NULL,
    degraded integer NOT NULL,
    buckets bigint[] NOT NULL
);

-- What model calls have cost, by day (UTC).
CREATE TABLE aftermind.spending (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    day date NOT NULL,
    kind text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    calls bigint NOT NULL DEFAULT 0,
    tokens_in bigint NOT NULL DEFAULT 0,
    tokens_out bigint NOT NULL DEFAULT 0,
    cost_usd double precision NOT NULL DEFAULT 0,
    latency_ms double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, day, user_id, kind, model)
) WITH (fillfactor = 70);
"""

REPLAYS = """
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
    position integer NOT NULL,
    state text NOT NULL,
    action_id uuid,
    new_job_id uuid,
    note text,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (plan_id, job_id)
);
CREATE INDEX replay_items_waiting ON aftermind.replay_items (plan_id, position) WHERE state = 'waiting';
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

-- The transactional outbox of events.
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
CREATE INDEX events_undelivered ON aftermind.events (namespace, user_id) WHERE published_at IS NULL;
CREATE INDEX events_created ON aftermind.events USING brin (created_at) WITH (pages_per_range = 32);

-- Committed effects that Redis has not received yet; see db.undelivered_watermarks.
CREATE TABLE aftermind.undelivered_watermarks (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX undelivered_watermarks_owner ON aftermind.undelivered_watermarks (namespace, user_id);

CREATE TABLE aftermind.webhooks (
    namespace text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    url text NOT NULL,
    events text[] NOT NULL DEFAULT '{}',
    secret bytea NOT NULL,
    former_secret bytea,
    former_secret_until timestamptz,
    description text NOT NULL DEFAULT '',
    is_disabled boolean NOT NULL DEFAULT false,
    reason text,
    failures integer NOT NULL DEFAULT 0,
    failing_since timestamptz,
    due_at timestamptz NOT NULL DEFAULT now(),
    delivered_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, id)
) WITH (fillfactor = 70);

-- No foreign key to `webhooks`: a commit of a memory must not fail because a webhook is deleted at that moment. The
-- foreign key to `events` deletes deliveries with events that are forgotten or pruned.
CREATE TABLE aftermind.webhook_deliveries (
    namespace text COLLATE "C" NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    webhook_id uuid NOT NULL,
    is_failed boolean NOT NULL DEFAULT false,
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL DEFAULT now(),
    token uuid,
    error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, user_id, seq, webhook_id),
    FOREIGN KEY (namespace, user_id, seq) REFERENCES aftermind.events (namespace, user_id, seq) ON DELETE CASCADE
) WITH (fillfactor = 70);
CREATE INDEX webhook_deliveries_due ON aftermind.webhook_deliveries (namespace, webhook_id, is_failed, due_at);
"""

ACCESS = """
CREATE TABLE aftermind.api_keys (
    namespace text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    name text NOT NULL,
    rights text[] NOT NULL,
    secret_sha256 bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    revoked_at timestamptz,
    PRIMARY KEY (id)
);
CREATE INDEX api_keys_of ON aftermind.api_keys (namespace, created_at);

-- A request presents a key before its tenant is known. These two functions read the rows of every tenant with the
-- rights of their owner, and return the row of one key id, and whether any key exists.
CREATE FUNCTION aftermind.api_key(wanted text) RETURNS SETOF aftermind.api_keys
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'SELECT * FROM aftermind.api_keys WHERE id = wanted';

CREATE FUNCTION aftermind.has_api_keys() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'SELECT EXISTS (SELECT FROM aftermind.api_keys)';

-- The audit log, and the head of each namespace's hash chain.
CREATE TABLE aftermind.audit_log (
    namespace text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    user_id text COLLATE "C",
    detail text NOT NULL,
    key_id text NOT NULL,
    mac bytea NOT NULL,
    PRIMARY KEY (namespace, seq)
);

CREATE TABLE aftermind.audit_heads (
    namespace text COLLATE "C" PRIMARY KEY,
    seq bigint NOT NULL,
    mac bytea NOT NULL,
    pruned_to bigint NOT NULL DEFAULT 0,
    pruned_mac bytea NOT NULL DEFAULT '',
    key_id text NOT NULL DEFAULT '',
    seal bytea NOT NULL DEFAULT ''
);

-- Whether any tenant's rows were made with a key: if so, a key file that is missing was lost and is not replaced.
CREATE FUNCTION aftermind.is_key_used(what text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'SELECT CASE what
    WHEN ''audit_key'' THEN EXISTS (SELECT FROM aftermind.audit_heads WHERE seq > 0)
    WHEN ''encryption_key'' THEN EXISTS (SELECT FROM aftermind.data_keys)
    WHEN ''webhook_key'' THEN EXISTS (SELECT FROM aftermind.webhooks)
END';
"""

PLACEMENT = """
-- Tenants that are moving between this database and another one of the map, or have left it (`database` is the other
-- one). A tenant without a row is served here. See db.tenant_moves for the states.
CREATE TABLE aftermind.tenant_moves (
    namespace text COLLATE "C" PRIMARY KEY,
    state text NOT NULL,
    database text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- Every transaction of a tenant begins here: it sets the tenant, and raises an error if the tenant is not served, or
-- not written, in this database. A writer holds a lock that the move waits for before it stops the writes. Not one SQL
-- statement: each statement inside has a snapshot of its own, so the row is read after the lock was taken.
CREATE FUNCTION aftermind.enter(tenant text, writes boolean) RETURNS text
LANGUAGE plpgsql AS $$
    DECLARE
        move record;
    BEGIN
        PERFORM set_config('aftermind.namespace', tenant, true);
        IF writes THEN
            PERFORM pg_advisory_xact_lock_shared(1634100590, hashtext(tenant));
        END IF;
        SELECT state, database INTO move FROM aftermind.tenant_moves WHERE namespace = tenant;
        IF move.state IN ('moved', 'incoming') OR (writes AND move.state <> 'copying') THEN
            RAISE EXCEPTION USING ERRCODE = 'AM002', MESSAGE = tenant, DETAIL = move.database, HINT = move.state;
        END IF;
        RETURN tenant;
    END
$$;
"""

SECTIONS = (META, USERS, EPISODES, ERASURE, LEARNING, JOBS, REPLAYS, EVENTS, ACCESS, PLACEMENT)
# A semicolon at the end of a line ends a statement if the next line is not indented; lines inside a function body are.
_STATEMENT_END = re.compile(r";\n+(?=[A-Z-])")


def upgrade() -> None:
    """Create the schema, with vectors of the dimension that `db.migrate` sets."""
    dimension = int(context.config.attributes["dimension"])
    for section in SECTIONS:
        for statement in _STATEMENT_END.split(section.strip().removesuffix(";")):
            op.execute(statement % {"dimension": dimension} if "%(dimension)d" in statement else statement)
