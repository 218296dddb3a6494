package worker_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/jobledger/jobledger/adapters/postgres/pgtest"
	"github.com/jobledger/jobledger/ledger"
)

// The ways of a proxy.
const (
	open   = "open"   // everything gets through
	closed = "closed" // connections break and new ones are refused, as when Postgres is down
	silent = "silent" // nothing gets through and nobody hears of it, as when a network is cut
	mute   = "mute"   // once a call of complete has got through, answers don't
)

// proxy stands between a pool and Postgres and can cut the one off from the other.
type proxy struct {
	*ledger.Ledger // through the proxy

	listener net.Listener
	dial     func() (net.Conn, error)
	lost     chan struct{} // gets a token for what did not get through, if there is room

	mu      sync.Mutex
	changed sync.Cond
	way     string
	hushed  bool // mute, and the call has got through
	conns   map[net.Conn]struct{}
	loops   sync.WaitGroup
}

// newProxy opens a pool through a proxy to db.
func newProxy(t testing.TB, db *pgtest.DB) *proxy {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	network, address := pgconn.NetworkAddress(cfg.ConnConfig.Host, cfg.ConnConfig.Port)
	p := &proxy{way: open, conns: map[net.Conn]struct{}{}, lost: make(chan struct{}, 1),
		dial: func() (net.Conn, error) { return net.Dial(network, address) }}
	p.changed.L = &p.mu
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(p.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.Host, cfg.ConnConfig.Port, cfg.ConnConfig.Fallbacks = host, uint16(n), nil
	cfg.ConnConfig.TLSConfig = nil
	cfg.MaxConns = 12
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	p.loops.Go(p.accept)
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.set(closed)
		pool.Close()
		_ = p.listener.Close()
		p.loops.Wait()
	})
	if p.Ledger, err = ledger.New(pool, ledger.Config{Actor: "tester"}); err != nil {
		t.Fatal(err)
	}
	return p
}

// set changes the proxy's way.
func (p *proxy) set(way string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.way, p.hushed = way, false
	p.changed.Broadcast()
	if way != closed {
		return
	}
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.loops.Go(func() { p.serve(client) })
	}
}

func (p *proxy) serve(client net.Conn) {
	if !p.keep(client) {
		return
	}
	defer p.drop(client)
	server, err := p.dial()
	if err != nil || !p.keep(server) {
		return
	}
	defer p.drop(server)
	p.loops.Go(func() {
		p.copy(server, client, true)
		_ = server.Close()
	})
	p.copy(client, server, false)
}

// completes is in what a client sends when it executes a call of complete: the name and the protocol's
// message Execute for the unnamed portal.
func completes(b []byte) bool {
	return bytes.Contains(b, []byte(".complete(")) && bytes.Contains(b, []byte("E\x00\x00\x00\x09\x00\x00\x00\x00\x00"))
}

// copy passes on what from sends as far as the way allows it.
func (p *proxy) copy(to, from net.Conn, fromClient bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !p.pass(fromClient, buf[:n]) {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
		if err != nil {
			return
		}
	}
}

// pass waits until b may go its way; false if it never may.
func (p *proxy) pass(fromClient bool, b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.way == mute && fromClient && completes(b) {
		p.hushed = true
	}
	for p.way != open && !(p.way == mute && (fromClient || !p.hushed)) {
		p.note()
		if p.way == closed {
			return false
		}
		p.changed.Wait()
	}
	return true
}

// keep takes a connection up unless the proxy is closed.
func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.way == closed {
		p.note()
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

func (p *proxy) note() {
	select {
	case p.lost <- struct{}{}:
	default:
	}
}

// TestProxy holds what the other tests rely on.
func TestProxy(t *testing.T) {
	t.Parallel()
	_, db := newLedger(t)
	p := newProxy(t, db)
	if _, err := p.Read().Counts(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.set(closed)
	if _, err := p.Read().Counts(t.Context()); err == nil || !ledger.Retryable(err) {
		t.Errorf("a closed proxy answered with %v, want an error to retry", err)
	}
	receive(t, "a token", p.lost)
	p.set(open)
	if _, err := p.Read().Counts(t.Context()); err != nil {
		t.Errorf("after it was opened again: %v", err)
	}
	_, err := p.dial()
	if err != nil && !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
