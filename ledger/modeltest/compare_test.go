package modeltest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/domain"
	"github.com/jobledger/jobledger/ledger"
	"github.com/jobledger/jobledger/projections"
)

// bodies are the texts that came with a job's events, by version.
type bodies map[int]string

// digest is how the model's events name a body: without a salt, which the database draws.
func digest(body *string) []byte {
	if body == nil {
		return nil
	}
	sum := sha256.Sum256([]byte(*body))
	return sum[:]
}

// sameEvents compares the stored events of a job, and the bodies under them, with the model's.
func sameEvents(ctx context.Context, db *pgtest.DB, l *ledger.Ledger, id uuid.UUID, want []domain.Event, texts bodies) error {
	got, err := l.History(ctx, id)
	if err != nil && !(errors.Is(err, domain.ErrNotFound) && len(want) == 0) {
		return err
	}
	if len(got) != len(want) {
		return fmt.Errorf("job %s has %d events, want %d: %s", id, len(got), len(want), lastOf(got, want))
	}
	stored, err := readBodies(ctx, db, id)
	if err != nil {
		return err
	}
	for i, g := range got {
		if err := sameEvent(g, want[i], stored, texts); err != nil {
			return fmt.Errorf("job %s version %d: %w", id, g.Version, err)
		}
	}
	if len(stored) != len(texts) {
		return fmt.Errorf("job %s has %d bodies, want %d", id, len(stored), len(texts))
	}
	return nil
}

// lastOf shows the events that one side has and the other has not.
func lastOf(got, want []domain.Event) string {
	if len(got) > len(want) {
		return fmt.Sprintf("too many: %+v", got[len(want):])
	}
	return fmt.Sprintf("missing: %+v", want[len(got):])
}

// sameEvent compares all that the domain decides. What only the database knows is set aside: seq, the
// session's user, and the salt in the digest, which is computed here once more.
func sameEvent(got, want domain.Event, stored map[int]body, texts bodies) error {
	if got.DBUser == "" || got.Seq == 0 {
		return fmt.Errorf("has no user or no seq: %+v", got)
	}
	got.DBUser, got.Seq = "", 0
	b, has := stored[got.Version]
	text, wanted := texts[got.Version]
	switch {
	case has != wanted || has != (got.Digest != nil) || has != (want.Digest != nil):
		return fmt.Errorf("body stored: %t, digest in the event: %t, want both: %t", has, got.Digest != nil, wanted)
	case has && b.text != text:
		return fmt.Errorf("body is %q, want %q", b.text, text)
	case has && !bytes.Equal(got.Digest, b.digest()):
		return fmt.Errorf("digest is %x, the body under it has %x", got.Digest, b.digest())
	}
	got.Digest, want.Digest = nil, nil
	// No call of the model says U+FFFD itself: where it stands, it is a substitute.
	want.Altered = strings.Contains(text, "\uFFFD")
	return same("event", got, want)
}

// body is a stored text with its salt.
type body struct {
	salt uuid.UUID
	text string
}

// digest is the salted digest that the event has to carry.
func (b body) digest() []byte {
	sum := sha256.Sum256(append(b.salt[:], b.text...))
	return sum[:]
}

func readBodies(ctx context.Context, db *pgtest.DB, id uuid.UUID) (map[int]body, error) {
	rows, err := db.Pool.Query(ctx, `SELECT version, salt, body FROM jobledger.job_payload WHERE job_id = $1`, id)
	if err != nil {
		return nil, err
	}
	out := map[int]body{}
	var version int
	var b body
	_, err = pgx.ForEachRow(rows, []any{&version, &b.salt, &b.text}, func() error {
		out[version] = b
		return nil
	})
	return out, err
}

// sameHome compares a home row with the fold of the job's events. Where a job came from is in its first
// event only.
func sameHome(got projections.Job, want domain.Job) error {
	want.Origin = domain.Origin{}
	if got.Job == want {
		return nil
	}
	return same(fmt.Sprintf("home of job %s", want.ID), got.Job, want)
}

// sameHomes compares all home rows of the ledger with the folds; each job has exactly one.
func sameHomes(ctx context.Context, l *ledger.Ledger, want map[uuid.UUID]domain.Job) error {
	got, err := l.Read().List(ctx, projections.Filter{Limit: 10000})
	if err != nil {
		return err
	}
	if len(got) != len(want) {
		return fmt.Errorf("the three homes hold %d rows for %d jobs", len(got), len(want))
	}
	seen := map[uuid.UUID]bool{}
	for _, g := range got {
		w, ok := want[g.ID]
		if !ok || seen[g.ID] {
			return fmt.Errorf("job %s has a second home or should not exist: %+v", g.ID, g)
		}
		seen[g.ID] = true
		if err := sameHome(g, w); err != nil {
			return err
		}
	}
	return nil
}
