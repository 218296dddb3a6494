package pgtest

import (
	"encoding/binary"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres"
)

// Way is how a Proxy treats all that comes to it.
type Way int

const (
	// Open lets everything through.
	Open Way = iota
	// Closed breaks all connections and refuses new ones, as when Postgres is down.
	Closed
	// Silent lets nothing through and nobody hears of it, as when a network is cut.
	Silent
	// Full lets connections live and refuses new ones with SQLSTATE 53300, as a server without free slots does.
	Full
)

// Action is what a Proxy does to one statement.
type Action int

const (
	// Pass lets it through.
	Pass Action = iota
	// CutBefore breaks the connection in place of handing the statement on: it was not carried out.
	CutBefore
	// CutAfter hands the statement on, waits until the server has answered all of it and breaks the connection in place
	// of handing the answer on: unless the answer was an error, it was carried out, and committed if it was its own
	// transaction or a COMMIT.
	CutAfter
	// Mute hands the statement on and keeps its answer, and what follows on this connection, until the next Set. The
	// connection looks alive, as one does whose other end is gone without a word.
	Mute
	// MuteBefore keeps the statement, and what follows on this connection, until the next Set.
	MuteBefore
)

// Proxy stands between clients and a Postgres and does damage at an exact point: it reads the protocol, so it knows
// which statement is being executed and when the server has answered it. Statements are known by their text, whether
// they are sent whole, prepared under a name or without one. It speaks no TLS.
type Proxy struct {
	// URL leads through the proxy to the database.
	URL string

	target   *pgconn.Config
	listener net.Listener
	lost     chan struct{}

	mu      sync.Mutex
	changed sync.Cond // way or round
	way     Way
	round   int // counts the calls of Set: what is muted waits for the next
	delay   time.Duration
	stuck   bool // requests to cancel are dropped
	decide  func(statement string) Action
	once    []*once
	links   map[*link]struct{}
	loops   sync.WaitGroup
}

// once is an action to be done to one statement.
type once struct {
	text   string
	action Action
	done   chan struct{}
}

// NewProxy opens a proxy to the database of a connection URL, until the end of the test. Its address is one of TCP on
// this machine, even where the URL names a socket.
func NewProxy(t testing.TB, databaseURL string) *Proxy {
	t.Helper()
	target, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		t.Fatalf("pgtest: open a proxy: %v", err)
	}
	p := &Proxy{target: target, lost: make(chan struct{}, 1), links: map[*link]struct{}{}}
	p.changed.L = &p.mu
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatalf("pgtest: open a proxy: %v", err)
	}
	address := url.URL{Scheme: "postgres", User: url.User(target.User), Host: p.listener.Addr().String(), Path: "/" + target.Database,
		RawQuery: "sslmode=disable"}
	if target.Password != "" {
		address.User = url.UserPassword(target.User, target.Password)
	}
	p.URL = address.String()
	p.loops.Go(p.accept)
	t.Cleanup(func() {
		p.Set(Closed)
		_ = p.listener.Close()
		p.loops.Wait()
	})
	return p
}

// Pool opens a pool through the proxy as commands do, until the end of the test. Default MaxConns: 8.
func (p *Proxy) Pool(t testing.TB, options ...Option) *pgxpool.Pool {
	t.Helper()
	c := config{maxConns: defaultMaxConns}
	for _, option := range options {
		option(&c)
	}
	pool, err := postgres.OpenPool(t.Context(), postgres.PoolConfig{URL: p.URL, MaxConns: c.maxConns, Name: "through a proxy"})
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		p.Set(Closed) // or what is muted would keep its connection, and Close waits for all
		if !closePool(pool, closeTimeout) {
			t.Errorf("pgtest: a connection through the proxy was not given back within %s of the test's end", closeTimeout)
		}
	})
	return pool
}

// Set changes the way. What is muted goes on, or breaks with the rest if the way is Closed. Actions that were asked for
// stay.
func (p *Proxy) Set(way Way) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.way = way
	p.round++
	p.changed.Broadcast()
	if way == Closed {
		for l := range p.links {
			l.close()
		}
	}
}

// SetDelay makes each flight of messages from the server arrive that much later.
func (p *Proxy) SetDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// DropCancels drops the requests to cancel a statement that drivers send when they give up a connection, so that what
// runs in the server goes on.
func (p *Proxy) DropCancels() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stuck = true
}

// Decide asks f about each statement that a client executes; nil for none. One call of f is made at a time, and it must
// not call the proxy.
func (p *Proxy) Decide(f func(statement string) Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide = f
}

// Once does action to the next statement whose text contains text, before Decide is asked. The channel is closed when
// it is done: for CutAfter and Mute once the server has answered.
func (p *Proxy) Once(text string, action Action) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := &once{text: text, action: action, done: make(chan struct{})}
	p.once = append(p.once, o)
	return o.done
}

// Lost gets a token, if there is room for one, for each thing that did not get through.
func (p *Proxy) Lost() <-chan struct{} { return p.lost }

// actionFor says what becomes of a statement, and what to call when it is done.
func (p *Proxy) actionFor(statement string) (Action, func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, o := range p.once {
		if strings.Contains(statement, o.text) {
			p.once = append(p.once[:i:i], p.once[i+1:]...)
			return o.action, func() { close(o.done) }
		}
	}
	if p.decide == nil {
		return Pass, func() {}
	}
	return p.decide(statement), func() {}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.loops.Go(func() { p.serve(client) })
	}
}

// pass waits until the way lets something through; false if it never does.
func (p *Proxy) pass() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.way == Silent {
		p.note()
		p.changed.Wait()
	}
	if p.way == Closed {
		p.note()
	}
	return p.way != Closed
}

// mute waits for the next Set; false if the way is Closed then.
func (p *Proxy) mute() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note()
	for round := p.round; p.round == round; {
		p.changed.Wait()
	}
	return p.way != Closed
}

// keep takes a connection up; false unless the way is open to it.
func (p *Proxy) keep(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.way == Closed {
		p.note()
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) drop(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
	l.close()
}

// admits says what becomes of a client that has said what it wants: it may go on, or there is no room.
func (p *Proxy) admits(hello []byte) (ok, full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cancel := binary.BigEndian.Uint32(hello[4:]) == askCancel
	if p.way == Full || cancel && p.stuck {
		p.note()
		return false, p.way == Full
	}
	return true, false
}

func (p *Proxy) note() {
	select {
	case p.lost <- struct{}{}:
	default:
	}
}
