package modeltest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
)

// publicCalls are calls of all public functions with every argument, as a caller who knows them would make them.
var publicCalls = map[string]string{
	"enqueue": `kind => 'k'::text, args => '1'::text, tag => 't'::text, priority => 1::int, scheduled_for => now()::timestamptz, delay => NULL::interval,
		policy_id => 1::int, key => 'key'::text, key_ttl => '1 hour'::interval, facts => '{}'::text, actor => 'a'::text`,
	"enqueue_many": `kinds => '{k,k}'::text[], args => '{1,2}'::text[], tags => '{t,t}'::text[], priorities => '{1,2}'::int[],
		scheduled_for => ARRAY[now(), now()]::timestamptz[], delays => NULL::interval[], policies => '{1,1}'::int[], keys => '{a,b}'::text[],
		key_ttls => '{1 hour,NULL}'::interval[], facts => '{NULL,NULL}'::text[], trigger_kinds => '{api,api}'::text[], trigger_refs => '{a,b}'::text[],
		parents => '{NULL,NULL}'::uuid[], works => '{NULL,NULL}'::uuid[], pins => '{1,2}'::int[],
		jobs => ARRAY[gen_random_uuid(), gen_random_uuid()]::uuid[], salts => NULL::uuid[], actor => 'a'::text, fresh => false::boolean`,
	"ensure_policy": `max_attempts => 1::int, timeout => '1 hour'::interval, restart_limit => 1::int, on_lost_lease => 'fail'::text, backoff_base => '1 second'::interval,
		backoff_factor => 200::int, backoff_cap => '1 hour'::interval, backoff_jitter => 1::int, stall_after => '1 hour'::interval`,
	"claim":         `worker => 'w'::text, tags => '{t,u}'::text[], max_jobs => 1::int, lease => '1 minute'::interval`,
	"ping":          held + `, lease => '1 minute'::interval, progress => '{1,2}'::text[], salts => NULL::uuid[], altered => '{f,t}'::boolean[]`,
	"complete":      held + `, results => '{1,2}'::text[], salts => NULL::uuid[], altered => '{f,t}'::boolean[]`,
	"fail":          held + `, classes => '{crash,NULL}'::text[], errors => '{a,b}'::text[], salts => NULL::uuid[], delays => '{1 hour,1 hour}'::interval[], permanent => '{f,t}'::boolean[], altered => '{f,t}'::boolean[]`,
	"release":       held,
	"snooze":        held + `, delays => '{1 hour,1 hour}'::interval[], reasons => '{a,b}'::text[]`,
	"reap":          `actor => 'a'::text, max_jobs => 1::int, tags => '{t,u}'::text[]`,
	"cancel":        `jobs => ARRAY[gen_random_uuid(), gen_random_uuid()]::uuid[], actor => 'a'::text, reason => 'r'::text, operation => gen_random_uuid()::uuid`,
	"redrive":       `jobs => ARRAY[gen_random_uuid(), gen_random_uuid()]::uuid[], actor => 'a'::text, reason => 'r'::text, operation => gen_random_uuid()::uuid`,
	"worker_seen":   `worker => 'w'::text, tags => '{t}'::text[], kinds => '{k}'::text[], host => 'h'::text, pid => 1::int, slots => 1::int, running => 1::int, state => 'working'::text`,
	"worker_gone":   `worker => 'w'::text`,
	"sleep":         `worker => 'w'::text, tags => '{t,u}'::text[], lasting => '1 minute'::interval, watching => false::boolean`,
	"wake":          `tags => '{t,u}'::text[]`,
	"extend_events": `ahead => 1::int`,
}

const held = `worker => 'w'::text, jobs => (SELECT array_agg(job_id) FROM jobledger.job_runtime)::uuid[], generations => '{1,1}'::int[]`

// oddValues are what somebody may say in place of an argument of a type.
var oddValues = map[string][]string{
	"text":        {`NULL`, `''`, `E'\n'`, `repeat('x', 3000000)`, `(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) i)`, `'{"a":'`, `'[1e99999999]'`, `'"\u0000"'`, `repeat('[', 20000)`},
	"int":         {`NULL`, `0`, `-1`, `2147483647`, `(-2147483648)`},
	"interval":    {`NULL`, `'0'`, `'-1 microsecond'`, `'178000000 years'`, `'-178000000 years'`, `'2147483647 days'`, `'1 month 1 day'`},
	"timestamptz": {`NULL`, `'infinity'`, `'-infinity'`, `'294276-12-31'`, `'4713-01-01 BC'`, `'epoch'`},
	"uuid":        {`NULL`},
	"boolean":     {`NULL`, `true`},
}

// oddArrays wrap an element of a type, or say something of another shape.
var oddArrays = []string{`NULL`, `ARRAY[%s, %s]`, `ARRAY[%s, NULL]`, `ARRAY[NULL, %s]`, `ARRAY[%s]`, `ARRAY[%s, %s, %s]`, `ARRAY[ARRAY[%s, %s]]`, `'{}'`, `'[0:1]={NULL,NULL}'`,
	`array_fill(%s, ARRAY[10001])`, `array_fill(NULL, ARRAY[2], ARRAY[7])`}

// TestOddArguments puts every odd value in the place of every argument of every public function. It must be taken,
// or refused with an SQLSTATE of ours: what Postgres itself finds wrong somewhere inside would tell the caller
// nothing about the field.
func TestOddArguments(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	documented := one[int](t, g.db.Connect(t), `SELECT count(DISTINCT proname) FROM pg_proc WHERE pronamespace = 'jobledger'::regnamespace AND proname = ANY ($1)`,
		slices.Collect(maps.Keys(publicCalls)))
	if documented != len(publicCalls) {
		t.Fatalf("%d of %d functions exist", documented, len(publicCalls))
	}
	calls := 0
	for _, function := range slices.Sorted(maps.Keys(publicCalls)) {
		t.Run(function, func(t *testing.T) {
			arguments := splitArguments(publicCalls[function])
			if err := oddCall(t, g.db, function, arguments); err != nil {
				t.Fatalf("the call as it should be: %v", err)
			}
			for i, argument := range arguments {
				name, value, _ := strings.Cut(argument, " => ")
				kind := value[strings.LastIndex(value, "::")+2:]
				for _, odd := range oddOf(kind) {
					calls++
					arguments[i] = fmt.Sprintf("%s => (%s)::%s", name, odd, kind)
					err := oddCall(t, g.db, function, arguments)
					var pg *pgconn.PgError
					if errors.As(err, &pg) && !strings.HasPrefix(pg.Code, "JL") {
						t.Errorf("%s => %.80s: %v", name, odd, err)
					}
				}
				arguments[i] = argument
			}
		})
	}
	if calls < 1000 {
		t.Errorf("%d calls were made: the search is broken", calls)
	}
}

// oddOf lists the odd values for an argument of a type.
func oddOf(kind string) (values []string) {
	element, isArray := strings.CutSuffix(kind, "[]")
	if !isArray {
		return oddValues[kind]
	}
	for _, shape := range oddArrays {
		if !strings.Contains(shape, "%s") {
			values = append(values, strings.Replace(shape, "(NULL,", "(NULL::"+element+",", 1))
			continue
		}
		for _, v := range oddValues[element] {
			if strings.Contains(shape, "10001") && strings.Contains(v, "repeat") {
				continue // gigabytes
			}
			values = append(values, strings.ReplaceAll(shape, "%s", "("+v+")::"+element))
		}
	}
	return values
}

// oddCall calls a function for two running jobs and undoes it.
func oddCall(t *testing.T, db *pgtest.DB, function string, arguments []string) error {
	t.Helper()
	const prepare = `SELECT jobledger.enqueue_many('{k,k}'); SELECT jobledger.claim('w', '{default}', 2, '24 hours'); `
	return inTx(t, db, prepare+`SELECT * FROM jobledger.`+function+`(`+strings.Join(arguments, ", ")+`)`)
}

// splitArguments splits at the commas in front of a name.
func splitArguments(text string) (arguments []string) {
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); strings.Contains(part, " => ") {
			arguments = append(arguments, part)
			continue
		}
		arguments[len(arguments)-1] += ", " + part
	}
	return arguments
}
