package modeltest

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/jobledger/jobledger/domain"
)

// The answers as a person wrote them down from the design, so that a mistake made alike in the domain and
// in SQL would be seen. The first line that fits decides; * in a name stands for anything. In the answers,
// = is the answer of the first sending, * a rejected event, . a call that is not made.
//
// A call that shows a generation: the generation first, then the state.
const fencedAnswers = `
state                      generation  ping                complete            fail                release             snooze

gone                       any         not_found           not_found           not_found           not_found           not_found
*                          above       unknown_generation  unknown_generation  unknown_generation  unknown_generation  unknown_generation
*                          never       unknown_generation  unknown_generation  unknown_generation  unknown_generation  unknown_generation
*                          foreign     fenced*             fenced*             fenced*             fenced*             fenced*
# generation 1 was released by the owner: that call is a repetition, all others are late
*                          older       fenced*             fenced*             fenced*             =released           fenced*

# failures that rule out another attempt: where the owner holds the job. Said late, they are refused as any
# other, and are not what the owner said before.
running*                   for_good       .                .                   failed              .                   .
running*                   invalid_input  .                .                   failed              .                   .
pinged*                    for_good       .                .                   failed              .                   .
pinged*                    invalid_input  .                .                   failed              .                   .
last_attempt               for_good       .                .                   failed              .                   .
last_attempt               invalid_input  .                .                   failed              .                   .
no_lease                   for_good       .                .                   failed              .                   .
no_lease                   invalid_input  .                .                   failed              .                   .

# waiting: nobody holds the job
released                   *           fenced*             fenced*             fenced*             =released           fenced*
snoozed                    *           fenced*             fenced*             fenced*             fenced*             =snoozed
retried_by_reaper          *           fenced*             fenced*             fenced*             fenced*             fenced*
retried*                   current     fenced*             fenced*             =retried            fenced*             fenced*
retried*                   *           .                   fenced*             fenced*             .                   .
reaped                     *           fenced*             fenced*             fenced*             fenced*             fenced*
redriven                   current     fenced*             fenced*             =failed             fenced*             fenced*
redriven                   *           .                   fenced*             fenced*             .                   .

# running: the lease and the time-out are over at their very instant; the time-out is told first
running*                   *           pinged              completed           retried             released            snoozed
pinged*                    *           pinged              completed           retried             released            snoozed
last_attempt               *           pinged              completed           failed              released            snoozed
no_lease                   *           pinged              completed           retried             released            snoozed
lease_over_then_timed_out  *           timed_out*          timed_out*          timed_out*          timed_out*          timed_out*
lease_and_timeout_at_once  *           timed_out*          timed_out*          timed_out*          timed_out*          timed_out*
timed_out*                 *           timed_out*          timed_out*          timed_out*          timed_out*          timed_out*
lease_over*                *           lease_over*         lease_over*         lease_over*         lease_over*         lease_over*

# the cancel mark: only completing wins over it, and it gives nobody more time
marked_lease_over          *           lease_over*         lease_over*         lease_over*         lease_over*         lease_over*
marked_timed_out           *           timed_out*          timed_out*          timed_out*          timed_out*          timed_out*
marked*                    *           pinged              completed           canceled            canceled            canceled

# ended: who ended it may say so again, in the same words
success*                   current     ended*              =completed          ended*              ended*              ended*
failure_by_reaper          current     ended*              ended*              ended*              ended*              ended*
failure*                   current     ended*              ended*              =failed             ended*              ended*
canceled                   current     ended*              ended*              =canceled           ended*              ended*
canceled_by_release        current     ended*              ended*              ended*              =canceled           =canceled
canceled_by_reaper         current     ended*              ended*              ended*              ended*              ended*
canceled_after_run         current     fenced*             fenced*             fenced*             =released           fenced*
canceled_after_run         *           .                   fenced*             fenced*             .                   .
*                          *           .                   ended*              ended*              .                   .
`

// A call that shows none. exists     is an enqueue under an id that exists; a claim and a reap that refuse
// a job pass it by.
const unfencedAnswers = `
state                       generation  enqueue     claim      cancel             reap      redrive

gone                        -           enqueued    not_found  not_found          not_found not_found

fresh_later                 -           exists      not_due    canceled           not_due   not_ended
snoozed                     -           exists      not_due    canceled           not_due   not_ended
retried                     -           exists      not_due    canceled           not_due   not_ended
retried_by_reaper           -           exists      not_due    canceled           not_due   not_ended
fresh*                      -           exists      claimed    canceled           not_due   not_ended
released                    -           exists      claimed    canceled           not_due   not_ended
retried_due                 -           exists      claimed    canceled           not_due   not_ended
reaped                      -           exists      claimed    canceled           not_due   not_ended
redriven*                   -           exists      claimed    canceled           not_due   not_ended

# what was over first is the cause
lease_over_no_restart_left  -           exists      not_due    cancel_requested   failed    not_ended
lease_over_fail             -           exists      not_due    cancel_requested   failed    not_ended
lease_over*                 -           exists      not_due    cancel_requested   reaped    not_ended
timed_out_last_attempt      -           exists      not_due    cancel_requested   failed    not_ended
timed_out*                  -           exists      not_due    cancel_requested   retried   not_ended
lease_and_timeout_at_once   -           exists      not_due    cancel_requested   retried   not_ended
running*                    -           exists      not_due    cancel_requested   alive     not_ended
pinged*                     -           exists      not_due    cancel_requested   alive     not_ended
last_attempt                -           exists      not_due    cancel_requested   alive     not_ended
no_lease                    -           exists      not_due    cancel_requested   alive     not_ended

marked_lease_over           -           exists      not_due    already_requested  canceled  not_ended
marked_timed_out            -           exists      not_due    already_requested  canceled  not_ended
marked*                     -           exists      not_due    already_requested  alive     not_ended

success*                    -           exists      ended      ended              ended     succeeded
failure*                    -           exists      ended      ended              ended     redriven
canceled*                   -           exists      ended      ended              ended     redriven
`

// literal is one line of the tables above.
type literal struct {
	state, relation string
	words           map[domain.Verb]string
}

func parseLiterals(text string) []literal {
	var out []literal
	var verbs []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] == "#":
			continue
		case verbs == nil:
			verbs = fields[2:]
			continue
		}
		l := literal{fields[0], fields[1], map[domain.Verb]string{}}
		for i, v := range verbs {
			l.words[domain.Verb(v)] = fields[2+i]
		}
		out = append(out, l)
	}
	return out
}

// compareLiteral names the cells in which the answer is not the one that was written down, the cells that
// no line speaks of, and the lines that no cell needs.
func compareLiteral(words map[cell]string) []string {
	lines := append(parseLiterals(fencedAnswers), parseLiterals(unfencedAnswers)...)
	var problems []string
	used := map[int]bool{}
	for _, c := range slices.SortedFunc(maps.Keys(words), compareCells) {
		i := slices.IndexFunc(lines, func(l literal) bool {
			_, has := l.words[c.verb]
			return has && fits(l.state, c.state) && fits(l.relation, c.relation)
		})
		if i < 0 {
			problems = append(problems, fmt.Sprintf("no line says what %s of a job that is %s, generation %s, answers", c.verb, c.state, c.relation))
			continue
		}
		used[i] = true
		if want := lines[i].words[c.verb]; words[c] != want {
			problems = append(problems, fmt.Sprintf("%s of a job that is %s, generation %s: %s, want %s", c.verb, c.state, c.relation, words[c], want))
		}
	}
	for i, l := range lines {
		if !used[i] {
			problems = append(problems, fmt.Sprintf("no cell needs the line of %s %s", l.state, l.relation))
		}
	}
	return problems
}

func fits(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

func compareCells(a, b cell) int {
	return strings.Compare(string(a.verb)+" "+a.state+" "+a.relation, string(b.verb)+" "+b.state+" "+b.relation)
}
