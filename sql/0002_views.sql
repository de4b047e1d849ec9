-- What people read: one row a cell, a sample, a job, a worker. Definitions of every figure are here and nowhere else; the
-- command line and dashboards only print them.

-- Wilson score interval, 95 %: (p + z2/2n -+ z sqrt(p(1-p)/n + z2/4n2)) / (1 + z2/n).
CREATE FUNCTION wilson_bound(correct bigint, n bigint, side integer) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN n > 0 THEN
        least(1, greatest(0,
            (p + z * z / (2 * n) + side * z * sqrt(p * (1 - p) / n + z * z / (4.0 * n * n))) / (1 + z * z / n)))
    END
    FROM (SELECT correct::double precision / nullif(n, 0) AS p, 1.959963984540054::double precision AS z) AS x
$$;

-- Exact two-sided McNemar test on the discordant pairs: min(1, 2 P(X <= min(lost, gained))), X ~ Binomial(n, 1/2).
-- Summed through logarithms, so that thousands of pairs do not underflow.
CREATE FUNCTION mcnemar_exact(lost bigint, gained bigint) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    n bigint := lost + gained;
    log_term double precision := -n * ln(2.0::double precision);
    total double precision := 0;
BEGIN
    IF lost IS NULL OR gained IS NULL THEN RETURN NULL; END IF;
    IF n = 0 THEN RETURN 1; END IF;
    FOR i IN 0 .. least(lost, gained) LOOP
        IF log_term > -700 THEN total := total + exp(log_term); END IF;
        log_term := log_term + ln((n - i)::double precision / (i + 1));
    END LOOP;
    RETURN least(1, 2 * total);
END $$;

-- One row a result with its newest grade.
CREATE VIEW v_sample AS
SELECT r.job_id, r.sample_id, r.cell_id, c.policy, c.budget_tokens, c.interval_tokens, c.temperature, c.top_p, c.top_k,
       p.name AS problem_name, s.problem_no, s.repeat, r.finish, r.error, g.verdict, g.reason, g.extracted, p.answer,
       g.grader, p.problem, r.text, r.prompt_tokens, r.output_tokens, r.thinking_tokens, r.output_hash, r.prompt_ids,
       r.queue_us, r.ttft_us, r.prefill_us, r.decode_us, r.compaction_us, r.total_us, r.compactions, r.evicted_entries,
       r.budget_achieved, r.weights_bytes, r.kv_live_mean_bytes, r.kv_live_peak_bytes, r.kv_reserved_bytes,
       r.workspace_bytes, r.device_peak_bytes, r.batch_mean, r.batch_max, r.min_margin, r.seed, r.attempt, r.fence,
       r.committed_at, r.run_id, u.kernel_set, u.revision, w.key_name || '@' || w.host || ':' || u.pid AS worker
FROM results r
JOIN samples s USING (job_id, sample_id)
JOIN cells c ON (c.job_id, c.cell_id) = (r.job_id, r.cell_id)
JOIN problems p ON (p.job_id, p.problem_no) = (s.job_id, s.problem_no)
LEFT JOIN LATERAL (SELECT * FROM grades x WHERE (x.job_id, x.sample_id) = (r.job_id, r.sample_id)
                   ORDER BY x.grader DESC LIMIT 1) g ON true
LEFT JOIN runs u ON u.run_id = r.run_id
LEFT JOIN workers w ON w.worker_id = u.worker_id;

-- The table of a sweep for one job. A function, so that a filter on the job reaches every scan.
CREATE FUNCTION cell_rows(wanted bigint) RETURNS TABLE (
    job_id bigint, cell_id bigint, ordinal integer, policy text, budget_tokens integer, interval_tokens integer,
    samples bigint, samples_total bigint, correct bigint,
    accuracy double precision, accuracy_low double precision, accuracy_high double precision,
    diff_full double precision, diff_pairs bigint, diff_lost bigint, diff_gained bigint, mcnemar_p double precision,
    wrong bigint, unanswered bigint, truncated bigint, errors bigint,
    mean_output_tokens double precision, kv_live_mean_bytes double precision, kv_live_peak_bytes double precision,
    kv_ratio double precision, decode_tokens_per_s double precision, e2e_tokens_per_s double precision,
    compactions_mean double precision, evicted_mean double precision, batch_mean double precision,
    pareto boolean, kernel_sets text, model_name text, dataset_name text)
LANGUAGE sql STABLE AS $$
WITH row_of AS (
    SELECT r.cell_id, s.problem_no, s.repeat, r.finish, r.finish <> 'error' AS ok, g.verdict, r.output_tokens, r.kv_live_mean_bytes,
           r.kv_live_peak_bytes, r.decode_us, r.prefill_us, r.compaction_us, r.compactions, r.evicted_entries,
           r.batch_mean, u.kernel_set
    FROM results r
    JOIN samples s ON (s.job_id, s.sample_id) = (r.job_id, r.sample_id)
    LEFT JOIN LATERAL (SELECT x.verdict FROM grades x WHERE (x.job_id, x.sample_id) = (r.job_id, r.sample_id)
                       ORDER BY x.grader DESC LIMIT 1) g ON true
    LEFT JOIN runs u ON u.run_id = r.run_id
    WHERE r.job_id = wanted
), cell AS (
    SELECT c.*, c.policy = 'full' AS is_full FROM cells c WHERE c.job_id = wanted
), figure AS (
    SELECT cell_id,
           count(*) AS samples,
           count(*) FILTER (WHERE finish = 'error') AS errors,
           count(*) FILTER (WHERE verdict = 'correct') AS correct,
           count(*) FILTER (WHERE verdict = 'wrong') AS wrong,
           count(*) FILTER (WHERE verdict = 'unanswered') AS unanswered,
           count(*) FILTER (WHERE verdict = 'truncated') AS truncated,
           -- like accuracy, every mean is over the samples that are no errors
           avg(output_tokens) FILTER (WHERE ok)::double precision AS mean_output_tokens,
           avg(row_of.kv_live_mean_bytes) FILTER (WHERE ok)::double precision AS kv_live_mean_bytes,
           avg(row_of.kv_live_peak_bytes) FILTER (WHERE ok)::double precision AS kv_live_peak_bytes,
           -- every sample carries its own share of each step, so the sums are one worker's time on this cell; the first
           -- token of a sample comes out of its prefill, not out of a decode step
           sum(output_tokens - 1) FILTER (WHERE ok AND output_tokens > 0) /
               nullif(sum(decode_us) FILTER (WHERE ok) / 1e6, 0) AS decode_tokens_per_s,
           sum(output_tokens) FILTER (WHERE ok) /
               nullif(sum(coalesce(decode_us, 0) + prefill_us + coalesce(compaction_us, 0)) FILTER (WHERE ok) / 1e6, 0)
               AS e2e_tokens_per_s,
           avg(compactions) FILTER (WHERE ok)::double precision AS compactions_mean,
           avg(evicted_entries) FILTER (WHERE ok)::double precision AS evicted_mean,
           avg(row_of.batch_mean) FILTER (WHERE ok) AS batch_mean,
           string_agg(DISTINCT kernel_set, ',') AS kernel_sets
    FROM row_of GROUP BY cell_id
), paired AS ( -- against full cache with the same sampling, on the same (problem, repeat); error rows are no evidence
    SELECT a.cell_id, count(*) AS pairs,
           count(*) FILTER (WHERE b.verdict = 'correct' AND a.verdict <> 'correct') AS lost,
           count(*) FILTER (WHERE b.verdict <> 'correct' AND a.verdict = 'correct') AS gained
    FROM row_of a
    JOIN cell ca ON ca.cell_id = a.cell_id AND NOT ca.is_full
    JOIN cell cb ON cb.is_full AND (cb.temperature, cb.top_p, cb.top_k) = (ca.temperature, ca.top_p, ca.top_k)
    JOIN row_of b ON b.cell_id = cb.cell_id AND (b.problem_no, b.repeat) = (a.problem_no, a.repeat)
    WHERE a.finish <> 'error' AND b.finish <> 'error'
    GROUP BY a.cell_id
), base AS (
    SELECT c.cell_id, f.kv_live_mean_bytes AS full_bytes
    FROM cell c
    JOIN cell cf ON cf.is_full AND (cf.temperature, cf.top_p, cf.top_k) = (c.temperature, c.top_p, c.top_k)
    JOIN figure f ON f.cell_id = cf.cell_id
), ranked AS (
    SELECT c.*, f.samples, f.errors, f.correct, f.wrong, f.unanswered, f.truncated, f.mean_output_tokens,
           f.kv_live_mean_bytes, f.kv_live_peak_bytes, f.decode_tokens_per_s, f.e2e_tokens_per_s, f.compactions_mean,
           f.evicted_mean, f.batch_mean, f.kernel_sets,
           f.correct::double precision / nullif(f.samples - f.errors, 0) AS accuracy
    FROM cell c LEFT JOIN figure f USING (cell_id)
)
SELECT wanted, c.cell_id, c.ordinal, c.policy, c.budget_tokens, c.interval_tokens,
       coalesce(c.samples, 0), j.n_problems::bigint * j.repeats, coalesce(c.correct, 0),
       c.accuracy, wilson_bound(c.correct, c.samples - c.errors, -1), wilson_bound(c.correct, c.samples - c.errors, 1),
       (p.gained - p.lost)::double precision / nullif(p.pairs, 0), p.pairs, p.lost, p.gained,
       mcnemar_exact(p.lost, p.gained),
       coalesce(c.wrong, 0), coalesce(c.unanswered, 0), coalesce(c.truncated, 0), coalesce(c.errors, 0),
       c.mean_output_tokens, c.kv_live_mean_bytes, c.kv_live_peak_bytes, c.kv_live_mean_bytes / nullif(b.full_bytes, 0),
       c.decode_tokens_per_s, c.e2e_tokens_per_s, c.compactions_mean, c.evicted_mean, c.batch_mean,
       c.accuracy IS NOT NULL AND c.kv_live_mean_bytes IS NOT NULL AND NOT EXISTS (
           SELECT FROM ranked o
           WHERE o.accuracy >= c.accuracy AND o.kv_live_mean_bytes <= c.kv_live_mean_bytes
             AND (o.accuracy > c.accuracy OR o.kv_live_mean_bytes < c.kv_live_mean_bytes)),
       c.kernel_sets, j.model_name, j.dataset_name
FROM ranked c
JOIN jobs j ON j.job_id = wanted
LEFT JOIN paired p USING (cell_id)
LEFT JOIN base b USING (cell_id)
ORDER BY c.ordinal
$$;

CREATE VIEW v_cell AS SELECT c.* FROM jobs j, LATERAL cell_rows(j.job_id) c;

CREATE VIEW v_job AS
SELECT j.job_id, j.title, j.state, j.model_name, j.model_hash, j.dataset_name, j.repeats, j.n_problems,
       (SELECT count(*) FROM cells c WHERE c.job_id = j.job_id) AS n_cells, j.n_samples,
       r.done, r.errors, r.tokens, j.created_at, j.started_at, j.finished_at,
       extract(epoch FROM coalesce(j.finished_at, now()) - j.started_at)::double precision AS wall_s,
       -- the whole fleet: emitted tokens over the wall time of the job
       r.tokens / nullif(extract(epoch FROM coalesce(j.finished_at, now()) - j.started_at), 0)::double precision
           AS tokens_per_s,
       r.top_error, r.top_error_count, j.submitted_by, j.skipped_lines, j.spec
FROM jobs j
LEFT JOIN LATERAL (
    SELECT count(*) AS done, count(*) FILTER (WHERE finish = 'error') AS errors,
           coalesce(sum(output_tokens), 0) AS tokens,
           (SELECT e.error FROM results e WHERE e.job_id = j.job_id AND e.finish = 'error'
            GROUP BY e.error ORDER BY count(*) DESC, e.error LIMIT 1) AS top_error,
           (SELECT count(*) FROM results e WHERE e.job_id = j.job_id AND e.finish = 'error'
            GROUP BY e.error ORDER BY count(*) DESC, e.error LIMIT 1) AS top_error_count
    FROM results x WHERE x.job_id = j.job_id) r ON true;

CREATE VIEW v_worker AS
SELECT u.run_id, w.key_name AS worker, w.host, u.pid,
       CASE WHEN u.ended_at IS NULL AND u.last_seen_at > now() - interval '60 seconds' THEN 'alive' ELSE 'gone' END AS state,
       u.backend, u.kernel_set, u.device, u.threads, u.max_batch, u.memory_bytes, u.models, u.version, u.revision,
       u.build_flags, u.started_at, u.last_seen_at, u.ended_at, u.end_reason, r.samples, r.tokens
FROM runs u
JOIN workers w USING (worker_id)
LEFT JOIN LATERAL (SELECT count(*) AS samples, coalesce(sum(output_tokens), 0) AS tokens
                   FROM results x WHERE x.run_id = u.run_id) r ON true;
-- A run's rows lie together, so block ranges find them, and a block range costs an insert next to nothing.
CREATE INDEX results_run ON results USING brin (run_id);
