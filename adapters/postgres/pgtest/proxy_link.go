package pgtest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// The codes with which a client begins that asks for something else than a session.
const (
	askCancel = 80877102
	askSSL    = 80877103
	askGSSENC = 80877104
)

// maxMessage is the longest message that Postgres itself accepts, about.
const maxMessage = 1 << 30

// link is one client's connection through a proxy.
type link struct {
	p              *Proxy
	client, server net.Conn

	// What the client has prepared, by the name of the statement, and bound, by that of the portal.
	statements, portals map[string]string
	next                flight // up to the client's next Sync

	mu      sync.Mutex
	flights []flight // sent to the server and not answered yet, each to be answered up to ReadyForQuery
}

// flight is what a client sends until it waits for an answer.
type flight struct {
	action Action
	done   func()
}

// serve leads one client to the server until either leaves.
func (p *Proxy) serve(client net.Conn) {
	l := &link{p: p, client: client, statements: map[string]string{}, portals: map[string]string{}, flights: []flight{{}}}
	defer client.Close()
	if !p.keep(l) {
		return
	}
	defer p.drop(l)
	r := bufio.NewReader(client)
	hello, err := readHello(r, client)
	if err != nil || !p.pass() {
		return
	}
	ok, full := p.admits(hello)
	if full {
		refuse := pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "53300", Message: "sorry, too many clients already"}
		if b, err := refuse.Encode(nil); err == nil {
			_, _ = client.Write(b)
		}
	}
	if !ok {
		return
	}
	network, address := pgconn.NetworkAddress(p.target.Host, p.target.Port)
	server, err := net.Dial(network, address)
	if err != nil {
		return
	}
	defer server.Close()
	if !l.attach(server) {
		return
	}
	if _, err := server.Write(hello); err != nil {
		return
	}
	var up sync.WaitGroup
	up.Go(func() {
		_ = l.upstream(r)
		l.close()
	})
	_ = l.downstream(bufio.NewReader(server))
	l.close()
	up.Wait()
}

// attach takes up the other end; false if the proxy was closed meanwhile.
func (l *link) attach(server net.Conn) bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.server = server
	return l.p.way != Closed
}

// close breaks both ends at once. The caller holds the proxy's lock or is one of the link's loops, which begin when
// both ends are there.
func (l *link) close() {
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
}

// readHello reads the first message of a client, which has no type. Wishes for encryption are denied.
func readHello(r *bufio.Reader, client io.Writer) ([]byte, error) {
	for {
		head, err := r.Peek(8)
		if err != nil {
			return nil, err
		}
		n, code := binary.BigEndian.Uint32(head), binary.BigEndian.Uint32(head[4:])
		if n < 8 || n > 1<<16 {
			return nil, fmt.Errorf("a first message of %d bytes", n)
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		if code != askSSL && code != askGSSENC {
			return b, nil
		}
		if _, err := client.Write([]byte{'N'}); err != nil {
			return nil, err
		}
	}
}

// readMessage appends one message with its type and length to b.
func readMessage(r *bufio.Reader, b []byte) ([]byte, error) {
	head, err := r.Peek(5)
	if err != nil {
		return b, err
	}
	n := int(binary.BigEndian.Uint32(head[1:])) + 1
	if n < 5 || n > maxMessage {
		return b, fmt.Errorf("a message of %d bytes", n)
	}
	begin := len(b)
	b = append(b, make([]byte, n)...)
	_, err = io.ReadFull(r, b[begin:])
	return b, err
}

// upstream hands on what the client sends, message by message.
func (l *link) upstream(r *bufio.Reader) error {
	var b []byte
	for {
		var err error
		if b, err = readMessage(r, b[:0]); err != nil {
			return err
		}
		if !l.p.pass() {
			return nil
		}
		before := l.note(b[0], b[5:])
		switch before {
		case CutBefore:
			l.p.mu.Lock()
			l.p.note()
			l.p.mu.Unlock()
			return nil
		case MuteBefore:
			if !l.p.mute() {
				return nil
			}
		}
		if _, err := l.server.Write(b); err != nil {
			return err
		}
	}
}

// note follows what the client does, and says what is to be done before the message goes on.
func (l *link) note(kind byte, body []byte) Action {
	switch kind {
	case 'P': // Parse: name, text
		name, rest := text(body)
		l.statements[name], _ = text(rest)
	case 'B': // Bind: portal, name
		portal, rest := text(body)
		name, _ := text(rest)
		l.portals[portal] = l.statements[name]
	case 'E': // Execute: portal
		portal, _ := text(body)
		return l.executes(l.portals[portal])
	case 'Q': // Query: text
		statement, _ := text(body)
		before := l.executes(statement)
		l.sent()
		return before
	case 'S': // Sync
		l.sent()
	}
	return Pass
}

// executes asks what is to be done to a statement: the first thing that is stands for the flight.
func (l *link) executes(statement string) Action {
	action, done := l.p.actionFor(statement)
	switch action {
	case CutBefore, MuteBefore:
		done()
		return action
	case CutAfter, Mute:
		if l.next.action == Pass {
			l.next = flight{action: action, done: done}
			return Pass
		}
	}
	done()
	return Pass
}

// sent notes that the server will answer with ReadyForQuery.
func (l *link) sent() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flights = append(l.flights, l.next)
	l.next = flight{}
}

// downstream hands on what the server answers. What is cut or muted is kept back until the server is ready again, hence
// done with all that it was asked for.
func (l *link) downstream(r *bufio.Reader) error {
	var b []byte
	for {
		begin := len(b)
		var err error
		if b, err = readMessage(r, b); err != nil {
			return err
		}
		l.mu.Lock()
		f := flight{}
		if len(l.flights) > 0 {
			f = l.flights[0]
		}
		ready := b[begin] == 'Z'
		if ready && len(l.flights) > 0 {
			l.flights = l.flights[1:]
		}
		l.mu.Unlock()
		if f.action != Pass && !ready {
			continue
		}
		if f.done != nil {
			f.done()
		}
		if f.action == CutAfter {
			return nil
		}
		if f.action == Mute && !l.p.mute() {
			return nil
		}
		if ready {
			l.p.wait()
		}
		if !l.p.pass() {
			return nil
		}
		if _, err := l.client.Write(b); err != nil {
			return err
		}
		b = b[:0]
	}
}

// wait holds an answer back for the proxy's delay.
func (p *Proxy) wait() {
	p.mu.Lock()
	d := p.delay
	p.mu.Unlock()
	if d <= 0 {
		return
	}
	<-time.After(d)
}

// text cuts a string of the protocol, which ends with a zero, off the front of b.
func text(b []byte) (string, []byte) {
	s, rest, _ := bytes.Cut(b, []byte{0})
	return string(s), rest
}
