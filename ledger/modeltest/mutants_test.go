package modeltest

import "github.com/jobledger/jobledger/domain"

// mutant is one fault planted in the SQL functions, and the test that has to find it.
type mutant struct {
	name  string
	edits []edit
	by    finder
}

// edit replaces a piece of one function's text wherever it stands in it.
type edit struct{ function, from, to string }

var enders = []string{"complete", "fail", "release", "snooze"}

// inAll is the same edit in several functions.
func inAll(functions []string, from, to string) []edit {
	return each(functions, func(f string) edit { return edit{f, from, to} })
}

var mutants = []mutant{
	// The guard of the fenced verbs.
	{"no generation test in ping", []edit{{"ping", "r.generation = i.generation AND ", ""}}, table(domain.VerbPing, "running")},
	{"no generation test in complete", []edit{{"complete", "r.generation = i.generation AND ", ""}}, table(domain.VerbComplete, "running")},
	{"no generation test in fail", []edit{{"fail", "r.generation = i.generation AND ", ""}}, table(domain.VerbFail, "running")},
	{"no generation test in release", []edit{{"release", "r.generation = i.generation AND ", ""}}, table(domain.VerbRelease, "running")},
	{"no generation test in snooze", []edit{{"snooze", "r.generation = i.generation AND ", ""}}, table(domain.VerbSnooze, "running")},
	{"a foreign worker may ping", []edit{{"ping", " AND r.worker = ping.worker", ""}}, table(domain.VerbPing, "running")},
	{"a foreign worker may complete", []edit{{"complete", " AND r.worker = complete.worker", ""}}, table(domain.VerbComplete, "running")},
	{"lease open at its end: ping", []edit{{"ping", "r.lease_until > clock()", "r.lease_until >= clock()"}}, table(domain.VerbPing, "lease_over")},
	{"lease open at its end: complete", []edit{{"complete", "r.lease_until > clock()", "r.lease_until >= clock()"}, {"complete", "v_until <= clock()", "v_until < clock()"}}, table(domain.VerbComplete, "lease_over")},
	{"lease open at its end: fail", []edit{{"fail", "r.lease_until > clock()", "r.lease_until >= clock()"}, {"fail", "v_until <= clock()", "v_until < clock()"}}, table(domain.VerbFail, "lease_over")},
	{"lease open at its end: release, snooze", append(inAll(enders[2:], "r.lease_until > clock()", "r.lease_until >= clock()"), inAll(enders[2:], "v_until <= clock()", "v_until < clock()")...), table(domain.VerbRelease, "lease_over")},
	{"time-out open at its end", inAll([]string{"ping"}, "r.timeout_at > clock()", "r.timeout_at >= clock()"), table(domain.VerbPing, "timed_out")},
	{"a ping revives a lease that is over", []edit{{"ping", "AND (r.lease_until IS NULL OR r.lease_until > clock())", ""}}, table(domain.VerbPing, "lease_over")},
	{"a ping outlives the time-out", []edit{{"ping", "AND (r.timeout_at IS NULL OR r.timeout_at > clock())", ""}}, table(domain.VerbPing, "timed_out")},
	{"a ping waits for a lock", []edit{{"ping", "FOR UPDATE OF r SKIP LOCKED", "FOR UPDATE OF r"}}, forced(pingNeverWaits)},

	// Late: the clock after the locks.
	{"no late test in complete", []edit{{"complete", "IF v_until <= clock()", "IF false"}}, forced(lateOwner(domain.VerbComplete))},
	{"no late test in fail", []edit{{"fail", "IF v_until <= clock()", "IF false"}}, forced(lateOwner(domain.VerbFail))},
	{"no late test in release", []edit{{"release", "IF v_until <= clock()", "IF false"}}, forced(lateOwner(domain.VerbRelease))},
	{"no late test in snooze", []edit{{"snooze", "IF v_until <= clock()", "IF false"}}, forced(lateOwner(domain.VerbSnooze))},
	{"late by the lease only", []edit{{"complete", "least(min(g.lease_until), min(g.timeout_at))", "min(g.lease_until)"}}, forced(lateByTimeout)},

	// Refusals.
	{"reason read in the statement of the guard", reasonInGuard, forced(reasonAfterMove)},
	{"repetition judged in the statement of the guard", reasonInGuard, forced(repetitionAfterMove)},
	// The version check is what ties a refusal's reason to the version that was judged. (What makes versions
	// dense is the lock of the home row, and behind it the unique index.)
	{"no version check in reject", []edit{{"reject", " AND w.version = reject.version", ""}}, forced(rejectedAsJudged)},
	{"a rejected event for each call", []edit{{"reject", "IF FOUND THEN", "IF false THEN"}}, table(domain.VerbPing, "released")},
	{"a rejected event per generation, whatever the verb", []edit{{"reject", " AND e.verb = reject.verb", ""}}, sampled},
	{"a rejected event for a generation never given", []edit{{"refuse", "'unknown_generation', 'busy'", "'busy'"}}, table(domain.VerbPing, "running")},
	{"a rejected event for generation 0", []edit{{"refuse", "i.generation NOT BETWEEN 1 AND h.generation", "i.generation > h.generation"}}, table(domain.VerbPing, "running")},
	{"a repetition is not recognised", []edit{{"refuse", "IF FOUND THEN", "IF false THEN"}}, table(domain.VerbComplete, "success")},
	{"a repetition with another body passes", []edit{{"refuse", "AND e.digest IS NOT DISTINCT FROM body_digest(coalesce(b.salt, i.salt), i.body)", ""}}, table(domain.VerbComplete, "success")},
	{"a repetition with another class passes", []edit{{"refuse", "AND (refuse.verb <> 'fail' OR e.class = i.class)", ""}}, table(domain.VerbFail, "failure")},
	{"a repetition by another worker passes", []edit{{"refuse", " AND e.actor = refuse.worker", ""}}, table(domain.VerbComplete, "success")},

	// The cancel mark.
	{"fail ignores the mark", []edit{{"fail", "WHEN g.canceled_by IS NOT NULL THEN 'canceled'", "WHEN false THEN 'canceled'"}}, table(domain.VerbFail, "marked")},
	{"release ignores the mark", []edit{{"release", "WHEN g.canceled_by IS NOT NULL THEN 'canceled'", "WHEN false THEN 'canceled'"}}, table(domain.VerbRelease, "marked")},
	{"snooze ignores the mark", []edit{{"snooze", "WHEN g.canceled_by IS NOT NULL THEN 'canceled'", "WHEN false THEN 'canceled'"}}, table(domain.VerbSnooze, "marked")},
	{"reap ignores the mark", []edit{{"reap", "WHEN m.canceled_by IS NOT NULL THEN 'canceled'", "WHEN false THEN 'canceled'"}}, table(domain.VerbReap, "marked_lease_over")},
	{"complete does not tell of the mark", []edit{{"complete", "g.canceled_by IS NOT NULL, 'success'", "false, 'success'"}}, table(domain.VerbComplete, "marked")},
	{"a second cancel overwrites the first", []edit{{"cancel", " AND r.canceled_by IS NULL", ""}}, table(domain.VerbCancel, "marked")},
	{"a cancel sent again is not recognised", []edit{{"cancel", "acted(v_left, cancel.operation, ARRAY['canceled', 'cancel_requested'])", "acted(v_left, NULL, '{}')"}}, table(domain.VerbCancel, "running")},
	{"a redrive sent again is not recognised", []edit{{"redrive", "acted(v_left, redrive.operation, ARRAY['redriven'])", "acted(v_left, NULL, '{}')"}}, table(domain.VerbRedrive, "failure")},
	{"a redrive sent again starts a job that has failed anew", []edit{{"redrive", "WHERE NOT EXISTS (SELECT FROM acted(ARRAY[j], redrive.operation, ARRAY['redriven']))", ""}}, forced(redriveSentLate)},
	{"cancel looks only once", []edit{{"cancel", "FOR try IN 1 .. 10 LOOP", "FOR try IN 1 .. 1 LOOP"}}, forced(cancelOfMoved)},
	{"redrive looks only once", []edit{{"redrive", "WHERE l.job_id <> ALL (SELECT e.job_id FROM unnest(v_ended) e)\n            AND (h", "WHERE false AND (h"}}, forced(redriveOfMoved)},

	// Claim.
	{"generation not raised by a claim", []edit{{"claim", "m.generation + 1", "m.generation"}}, table(domain.VerbClaim, "released")},
	{"lowest priority first", []edit{{"claim", "c.priority DESC", "c.priority"}, {"claim", "w.priority DESC", "w.priority"}}, sampled},
	{"latest due first", []edit{{"claim", "c.scheduled_for, c.job_id", "c.scheduled_for DESC, c.job_id"}, {"claim", "w.scheduled_for, w.job_id", "w.scheduled_for DESC, w.job_id"}}, sampled},
	{"largest id first", []edit{{"claim", "c.scheduled_for, c.job_id", "c.scheduled_for, c.job_id DESC"}, {"claim", "w.scheduled_for, w.job_id", "w.scheduled_for, w.job_id DESC"}}, sampled},
	{"a claim takes what is due later", []edit{{"claim", " AND w.scheduled_for <= v_now", ""}, {"claim", " AND q.scheduled_for <= v_now", ""}}, table(domain.VerbClaim, "fresh_later")},
	{"a claim a microsecond early", []edit{{"claim", "scheduled_for <= v_now", "scheduled_for <= v_now + interval '1 microsecond'"}}, sampled},
	{"a claim from a paused tag", []edit{{"claim", "s.paused_at IS NOT NULL", "false"}}, sampled},
	{"a lease where there is to be none", []edit{{"claim", "WHEN p.on_lost_lease = 'reconcile'", "WHEN false"}}, table(domain.VerbClaim, "fresh_no_lease")},
	{"progress lost between attempts", []edit{{"release", "j.progress_version, j.error_version, j.priority, j.due", "0, j.error_version, j.priority, j.due"}}, table(domain.VerbRelease, "pinged")},

	// Reap.
	{"reap an instant too late", []edit{{"reap", "r.lease_until <= clock() OR", "r.lease_until < clock() OR"}}, table(domain.VerbReap, "lease_over")},
	{"a restart spends an attempt", []edit{{"reap", "CASE j.event WHEN 'reaped' THEN 1 ELSE 0 END,", "0,"}}, table(domain.VerbReap, "lease_over")},
	{"a restart is not counted", []edit{{"reap", "j.restarts + CASE j.event WHEN 'reaped' THEN 1 ELSE 0 END", "j.restarts"}}, table(domain.VerbReap, "lease_over")},
	{"one restart too many", []edit{{"reap", "m.restarts >= p.restart_limit", "m.restarts > p.restart_limit"}}, table(domain.VerbReap, "lease_over_no*")},
	{"the limit is tested before the mark", []edit{{"reap", "CASE WHEN m.canceled_by IS NOT NULL THEN 'canceled'", "CASE WHEN NOT c.by_timeout AND m.restarts >= p.restart_limit THEN 'failed' WHEN m.canceled_by IS NOT NULL THEN 'canceled'"}}, table(domain.VerbReap, "marked_lease_over")},
	{"the cause is what is over when the reaper comes", []edit{{"reap", " AND m.lease_until >= m.timeout_at", ""}}, table(domain.VerbReap, "lease_over_then*")},
	{"reap takes back more than it may", []edit{{"reap", "LIMIT reap.max_jobs", "LIMIT reap.max_jobs + 1"}}, sampled},

	// Retries.
	{"one attempt too many", []edit{{"fail", "g.attempt >= p.max_attempts", "g.attempt > p.max_attempts"}}, table(domain.VerbFail, "last_attempt")},
	{"invalid input is tried again", []edit{{"fail", "g.permanent OR g.class = 'invalid_input' OR", "g.permanent OR"}}, table(domain.VerbFail, "running")},
	{"the delay grows a step too early", []edit{{"retry_delay", "i < retry_delay.attempt", "i <= retry_delay.attempt"}}, table(domain.VerbFail, "running")},
	{"a snooze spends the attempt", []edit{{"snooze", "THEN 0 ELSE 1 END AS attempt_after", "THEN 0 ELSE 0 END AS attempt_after"}}, table(domain.VerbSnooze, "running")},
	{"redrive resets the generation", []edit{{"redrive", "g.version + 1, g.generation, 0, 0", "g.version + 1, 0, 0, 0"}}, table(domain.VerbRedrive, "failure")},
	{"redrive keeps the attempts", []edit{{"redrive", "g.version + 1, g.generation, 0, 0", "g.version + 1, g.generation, g.attempt, 0"}}, table(domain.VerbRedrive, "failure")},
	{"success is driven again", []edit{{"redrive", " AND c.outcome <> 'success'", ""}}, table(domain.VerbRedrive, "success")},

	// Enqueue and its keys.
	{"a key with other args is a replay", []edit{{"take_keys", "WHEN u.kind <> t.kind THEN false", "WHEN u.kind <> t.kind THEN true"}, {"take_keys", "IF same_json(i.args, v_first) IS NOT TRUE", "IF false"}}, sampled},
	{"a key with other spelling is a conflict", []edit{{"take_keys", "IF same_json(i.args, v_first) IS NOT TRUE", "IF true"}}, sampled},
	{"whose a key is, told by the job's id", []edit{{"take_keys", "u.ord IS DISTINCT FROM t.owner", "take_keys.jobs[u.ord] <> t.job_id"}}, sampled},
	{"a key is never free", []edit{{"take_keys", "c.changed_at + least(k.ttl, '87600 hours') <= clock()", "false"}}, sampled},
	{"a key is free as soon as its job has ended", []edit{{"take_keys", "c.changed_at + least(k.ttl, '87600 hours') <= clock()", "true"}}, sampled},
	{"a body without its salt", []edit{{"complete", "body_digest(g.salt, g.body)", "sha256(convert_to(g.body, 'UTF8'))"}}, table(domain.VerbComplete, "running")},
}

// reasonInGuard lets complete keep what the snapshot of its guard shows of the jobs, and refuse judge by that.
var reasonInGuard = []edit{
	{"complete", "least(min(g.lease_until), min(g.timeout_at))", `least(min(g.lease_until), min(g.timeout_at),
                (SELECT CASE WHEN set_config('mutant.seen', json_object_agg(j.job_id, j)::text, true) IS NULL THEN NULL::timestamptz END
                 FROM job j WHERE j.job_id = ANY (complete.jobs)))`},
	{"refuse", "SELECT * INTO h FROM home(i.job_id);", `SELECT * INTO h FROM json_to_record(current_setting('mutant.seen')::json -> i.job_id::text)
            AS (state text, version integer, generation integer, attempt integer, worker text, lease_until timestamptz,
                timeout_at timestamptz, canceled_by text, outcome text);`},
}
