-- Jobs, what they consist of, who works on them, and what came out.
--
-- PostgreSQL is the truth: `samples` and `results` are insert-only, a sample is done when its result row is there, and a
-- result is written only together with the check of its lease's fence. The coordinator keeps its queue in memory and
-- builds it from these tables when it starts. Every key begins with job_id, so that the large tables can be partitioned
-- by job later without a change of keys.

CREATE TABLE workers (
    worker_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key_name    text NOT NULL,              -- name of its CURVE key
    host        text NOT NULL,
    UNIQUE (key_name, host)
);

-- One start of one worker process: everything a figure may depend on.
CREATE TABLE runs (
    run_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    worker_id    bigint NOT NULL REFERENCES workers,
    instance     text NOT NULL UNIQUE,
    pid          integer NOT NULL,
    version      text NOT NULL,
    revision     text NOT NULL,             -- source revision, "-dirty" when the tree was
    build_flags  text NOT NULL,
    backend      text NOT NULL,
    kernel_set   text NOT NULL,
    device       text NOT NULL,
    threads      integer NOT NULL,
    max_batch    integer NOT NULL,
    memory_bytes bigint,
    models       jsonb NOT NULL,            -- [{"name", "hash"}]
    started_at   timestamptz NOT NULL DEFAULT now(),
    last_seen_at timestamptz NOT NULL DEFAULT now(),
    ended_at     timestamptz,
    end_reason   text
);

CREATE TABLE jobs (
    job_id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    content_hash  text NOT NULL,            -- of everything that decides the results; equal jobs have equal hashes
    title         text NOT NULL,
    state         text NOT NULL CHECK (state IN ('receiving', 'running', 'done', 'done_with_errors', 'cancelled')),
    model_name    text NOT NULL,
    model_hash    text NOT NULL,
    dataset_name  text NOT NULL,
    dataset_hash  text NOT NULL,
    profile       text,
    repeats       integer NOT NULL,
    seed          numeric(20) NOT NULL,
    n_problems    integer NOT NULL,
    n_samples     bigint NOT NULL,          -- problems x repeats x cells
    max_attempts  integer NOT NULL,
    skipped_lines bigint NOT NULL,          -- of the data set, left out on the submitter's word
    spec          jsonb NOT NULL,           -- the command as it was given
    submitted_by  text NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    started_at    timestamptz,
    finished_at   timestamptz
);
CREATE INDEX jobs_content ON jobs (content_hash);

CREATE TABLE cells (
    job_id          bigint NOT NULL REFERENCES jobs,
    cell_id         bigint GENERATED ALWAYS AS IDENTITY,
    ordinal         integer NOT NULL,       -- place in the sweep
    policy          text NOT NULL,
    budget_tokens   integer,                -- NULL: full cache has none
    interval_tokens integer,
    temperature     double precision NOT NULL,
    top_p           double precision NOT NULL,
    top_k           integer NOT NULL,
    max_new_tokens  integer NOT NULL,
    template_name   text NOT NULL,
    PRIMARY KEY (job_id, cell_id)
);

CREATE TABLE problems (
    job_id       bigint NOT NULL REFERENCES jobs,
    problem_no   integer NOT NULL,          -- 0-based place in the submitted set
    name         text NOT NULL,             -- the data set's id
    content_hash text NOT NULL,
    ordinal      integer NOT NULL,          -- among problems of equal content
    problem      text NOT NULL,
    answer       text NOT NULL,
    PRIMARY KEY (job_id, problem_no)
);

CREATE TABLE samples (
    job_id     bigint NOT NULL,
    sample_id  bigint GENERATED ALWAYS AS IDENTITY,
    cell_id    bigint NOT NULL,
    problem_no integer NOT NULL,
    repeat     integer NOT NULL,
    seed       numeric(20) NOT NULL,        -- from content, ordinal, repeat and the job's seed: the same in every cell
    PRIMARY KEY (job_id, sample_id),
    UNIQUE (job_id, cell_id, problem_no, repeat),
    FOREIGN KEY (job_id, cell_id) REFERENCES cells,
    FOREIGN KEY (job_id, problem_no) REFERENCES problems
);

-- A lease is a fencing token: results count only while it is active. Attempts are counted from here after a restart.
CREATE TABLE leases (
    fence      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id     bigint NOT NULL REFERENCES jobs,
    run_id     bigint NOT NULL REFERENCES runs,
    sample_ids bigint[] NOT NULL,
    state      text NOT NULL CHECK (state IN ('active', 'done', 'released', 'expired', 'revoked')),
    granted_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz
) WITH (fillfactor = 70);
CREATE INDEX leases_active ON leases (job_id) WHERE state = 'active';

-- A measured value that does not exist is NULL, never 0.
CREATE TABLE results (
    job_id             bigint NOT NULL,
    sample_id          bigint NOT NULL,
    cell_id            bigint NOT NULL,
    -- NULL: written by the coordinator (attempts used up). No foreign key: the fence check ties it to leases.run_id, which
    -- has one, and checking it again for every row is a quarter of the cost of an insert.
    run_id             bigint,
    fence              bigint NOT NULL,
    attempt            integer NOT NULL,
    finish             text NOT NULL CHECK (finish IN ('stop', 'stop_string', 'length', 'loop', 'oom', 'cancelled', 'error')),
    error              text,
    prompt_tokens      integer,
    output_tokens      integer,
    thinking_tokens    integer,             -- NULL: thinking never ended
    text               text,
    output_hash        bigint,
    prompt_ids         text,                -- first 8 and last 8
    queue_us           bigint,
    ttft_us            bigint,
    prefill_us         bigint,
    decode_us          bigint,              -- its share of each decode step
    compaction_us      bigint,
    total_us           bigint,
    compactions        integer,
    evicted_entries    bigint,
    budget_achieved    double precision,
    weights_bytes      bigint,
    kv_live_mean_bytes bigint,
    kv_live_peak_bytes bigint,
    kv_reserved_bytes  bigint,
    workspace_bytes    bigint,
    device_peak_bytes  bigint,
    batch_mean         double precision,
    batch_max          integer,
    min_margin         double precision,
    seed               numeric(20) NOT NULL,
    committed_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, sample_id)
);

-- Apart from results, keyed by grader version: rescoring needs no decoder.
CREATE TABLE grades (
    job_id    bigint NOT NULL,
    sample_id bigint NOT NULL,
    grader    text NOT NULL,                -- name and version
    verdict   text NOT NULL CHECK (verdict IN ('correct', 'wrong', 'unanswered', 'truncated', 'error')),
    reason    text,
    extracted text,
    PRIMARY KEY (job_id, sample_id, grader)
);
