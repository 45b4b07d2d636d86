package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

// A TLS is the certificate of this node, and the authorities whose certificates other nodes have.
// Files that have changed are read again, so that certificates can be renewed while the node runs. If
// they cannot be used, the earlier ones stay in use.
type TLS struct {
	paths   [3]string // of the certificate, its key, and the authorities
	current atomic.Pointer[identity]

	mu      panics.Mutex // guards the following
	checked time.Time    // when the files were last looked at
	looking bool         // a goroutine looks at them
	stamps  [3]stamp     // of the files that are in use
	refused [3]stamp     // of those that could not be used
}

// An identity is the content of the files of a TLS.
type identity struct {
	certificate tls.Certificate
	authorities *x509.CertPool
}

// ReadTLS reads the files of a TLS, which are PEM: a certificate for clients and servers, its key, to
// which only its owner has access, and the certificates of authorities, one of which has signed it.
func ReadTLS(cert, key, ca string) (*TLS, error) {
	t := &TLS{paths: [3]string{cert, key, ca}, checked: time.Now()}
	t.stamps = t.stat()
	id, err := t.read()
	if err != nil {
		return nil, err
	}
	t.current.Store(id)
	return t, nil
}

// A stamp tells two contents of a file apart.
type stamp struct {
	inode        uint64
	size         int64
	mtime, ctime syscall.Timespec
}

// reloadPause is the least time between two looks at the files.
const reloadPause = time.Second

// identity returns the certificate and the authorities that are in use. It does not wait for the file
// system of the files, which may hang: another goroutine looks whether they have changed. report gets
// the reason why they cannot be used, once for each change.
func (t *TLS) identity(now time.Time, report func(error)) *identity {
	t.mu.Lock()
	due := !t.looking && now.Sub(t.checked) >= reloadPause
	if due {
		t.looking, t.checked = true, now
	}
	t.mu.Unlock()
	if due {
		go func() {
			defer panics.Contain()
			t.reload(report)
		}()
	}
	return t.current.Load()
}

// reload reads the files again if they have changed.
func (t *TLS) reload(report func(error)) {
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.looking = false
	}()
	stamps := t.stat()
	t.mu.Lock()
	same := stamps == t.stamps
	t.mu.Unlock()
	if same {
		return
	}
	id, err := t.read()
	if t.settle(stamps, id, err) {
		report(err)
	}
}

// settle records the result of read, and reports whether err is one of a change that is new.
func (t *TLS) settle(stamps [3]stamp, id *identity, err error) (failed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.stamps = stamps
		t.current.Store(id)
		return false
	}
	failed = stamps != t.refused
	t.refused = stamps
	return failed
}

// stat returns the stamps of the files. It is called before read: the content may change again.
func (t *TLS) stat() (stamps [3]stamp) {
	for i, path := range t.paths {
		var st syscall.Stat_t
		if syscall.Stat(path, &st) == nil {
			stamps[i] = stamp{st.Ino, st.Size, st.Mtim, st.Ctim}
		}
	}
	return stamps
}

// read reads the files, and checks the certificate.
func (t *TLS) read() (*identity, error) {
	id, err := t.parse()
	if err != nil {
		return nil, err
	}
	if err := id.check(); err != nil {
		return nil, fmt.Errorf("certificate %s: %w", t.paths[0], err)
	}
	return id, nil
}

// parse reads the files.
func (t *TLS) parse() (*identity, error) {
	const maxFile = 1 << 20
	var texts [3][]byte
	for i, path := range t.paths {
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if path == t.paths[1] {
			if err := checkPrivate(f); err != nil {
				return nil, fmt.Errorf("key %s: %w", path, err)
			}
		}
		if texts[i], err = io.ReadAll(io.LimitReader(f, maxFile)); err != nil {
			return nil, err
		}
	}
	certificate, err := tls.X509KeyPair(texts[0], texts[1])
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", t.paths[0], err)
	}
	id := &identity{certificate, x509.NewCertPool()}
	if !id.authorities.AppendCertsFromPEM(bytes.TrimSpace(texts[2])) {
		return nil, fmt.Errorf("%s has no certificates", t.paths[2])
	}
	return id, nil
}

// check returns an error unless an authority has signed the certificate of this node, for both
// usages.
func (id *identity) check() error {
	var chain []*x509.Certificate
	for _, der := range id.certificate.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		chain = append(chain, c)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := id.verify(chain, usage); err != nil {
			return err
		}
	}
	return nil
}

// verify returns an error unless an authority has signed a certificate for a usage. The certificates
// after the first are intermediate ones.
func (id *identity) verify(certs []*x509.Certificate, usage x509.ExtKeyUsage) error {
	o := x509.VerifyOptions{Roots: id.authorities, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{usage}}
	for _, c := range certs[1:] {
		o.Intermediates.AddCert(c)
	}
	_, err := certs[0].Verify(o)
	return err
}

// certifies returns an error unless a certificate is for the name or the address of p in the roster.
func certifies(c *x509.Certificate, p *peer) error {
	err := c.VerifyHostname(p.name)
	if err == nil {
		return nil
	}
	host, _, _ := net.SplitHostPort(p.address)
	if host != "" && c.VerifyHostname(host) == nil {
		return nil
	}
	return err
}

// identity returns the identity of this node. Files that cannot be used are logged.
func (n *Node) identity() *identity {
	return n.cfg.TLS.identity(time.Now(), func(err error) {
		n.cfg.Log.Warn("the certificate of this node has changed and cannot be used", "err", err)
	})
}

// tlsConfig returns what clients and servers have in common. Sessions are not resumed, so that each
// connection verifies the certificates, and records have their full size from the beginning.
func tlsConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true}
}

// listenTLS returns a listener with TLS. Clients need a certificate.
func (n *Node) listenTLS(inner net.Listener) net.Listener {
	return tls.NewListener(inner, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		id := n.identity()
		c := tlsConfig()
		c.Certificates = []tls.Certificate{id.certificate}
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, id.authorities
		return c, nil
	}})
}

// handshakeTimeout bounds a handshake of a client.
const handshakeTimeout = 5 * time.Second

// alertTimeout bounds how long an alert is awaited after a failed write.
const alertTimeout = time.Second

// dialTLS is the DialTLSContext of a transport. dial connects.
func (n *Node) dialTLS(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		i := slices.IndexFunc(n.peers, func(p *peer) bool { return p.address == address })
		if i < 0 {
			return nil, fmt.Errorf("no node has the address %s", address)
		}
		p, id := n.peers[i], n.identity()
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		defer context.AfterFunc(n.ctx, cancel)()
		c := tlsConfig()
		// Without a server name, the name and the address of the node are compared.
		c.InsecureSkipVerify = true
		c.VerifyConnection = func(s tls.ConnectionState) error {
			err := id.verify(s.PeerCertificates, x509.ExtKeyUsageServerAuth)
			if err == nil {
				err = certifies(s.PeerCertificates[0], p)
			}
			if err != nil {
				return &miss{otherTLS, fmt.Errorf("the certificate of %s is refused: %w", p.name, err)}
			}
			return nil
		}
		// It is also sent to a server with other authorities, which then says so.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &id.certificate, nil }
		secure := tls.Client(conn, c)
		if err := secure.HandshakeContext(ctx); err != nil {
			conn.Close()
			if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
				err = &miss{otherTLS, fmt.Errorf("%s: %w", p.name, ErrPlain)}
			}
			return nil, err
		}
		return refusable{secure}, nil
	}
}

// A refusable is a connection whose server may still refuse the certificate of this node: it verifies
// it after the handshake of the client has ended.
type refusable struct{ *tls.Conn }

// Write implements net.Conn. A write that fails because the server has refused the certificate
// returns the alert, which may not have been read yet.
func (c refusable) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		c.SetReadDeadline(time.Now().Add(alertTimeout))
		if _, alert := c.Read(make([]byte, 1)); isAlert(alert) {
			err = alert
		}
	}
	return n, err
}

// The errors of requests between a node with TLS and one without.
var (
	ErrPlain = errors.New("it does not use TLS, and this node does")
	ErrTLS   = errors.New("it uses TLS, and this node does not")
)

// plainRefusal is the body with which net/http answers a request without TLS.
const plainRefusal = "Client sent an HTTP request to an HTTPS server."

// isAlert reports whether err is an alert of the other end of a TLS connection.
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}
