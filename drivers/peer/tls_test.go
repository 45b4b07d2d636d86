package peer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// An authority signs the certificates of a test.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key}
	a.cert = a.signAuthority(key)
	return a
}

// signAuthority signs the certificate of an authority.
func (a *authority) signAuthority(key *ecdsa.PrivateKey) *x509.Certificate {
	return a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, key)
}

// intermediate returns an authority whose certificate a has signed.
func (a *authority) intermediate() *authority {
	b := newAuthority(a.t)
	b.cert = a.signAuthority(b.key)
	return b
}

// sign signs a certificate for key. The first is that of the authority itself.
func (a *authority) sign(c *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	c.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<62))
	c.Subject = pkix.Name{CommonName: c.SerialNumber.String()}
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	c.NotBefore = c.NotAfter.Add(-48 * time.Hour)
	parent := a.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return signed
}

// files are the paths of the files of a TLS.
type files struct{ cert, key, ca string }

func filesIn(dir string) files {
	return files{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")}
}

// issue writes a certificate for names, and the authorities in trusted, to files. change changes the
// certificate before it is signed.
func (a *authority) issue(f files, names []string, change func(*x509.Certificate), trusted ...*authority) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	if change != nil {
		change(c)
	}
	c = a.sign(c, key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	var cas []byte
	for _, ca := range trusted {
		cas = append(cas, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})...)
	}
	write := func(path string, data []byte) {
		if err := os.WriteFile(path+".new", data, 0o600); err != nil {
			a.t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			a.t.Fatal(err)
		}
	}
	write(f.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	write(f.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	write(f.ca, cas)
}

// readTLS reads files, which are good.
func readTLS(t testing.TB, f files) *TLS {
	t.Helper()
	s, err := ReadTLS(f.cert, f.key, f.ca)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// again makes t look at its files now.
func (t *TLS) again() { t.reload(func(error) {}) }

// force makes t use its files, although this node itself would refuse most of them.
func (t *TLS) force() {
	id, err := t.parse()
	if err != nil {
		panic(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current.Store(id)
	t.checked = time.Now().Add(time.Hour)
}

// A secureRig is a client a and a server b, with TLS.
type secureRig struct {
	*rig
	ca    *authority
	files map[string]files // of the nodes
	name  string           // of a file that b owns
	data  []byte
}

// newSecureRig makes nodes with certificates for their names. change changes the TLS of a node before
// it is made, and may be nil.
func newSecureRig(t testing.TB, change func(c *Config)) *secureRig {
	t.Helper()
	source, b := newMemory(make(map[string][]byte)), newMemory(make(map[string][]byte))
	b.copies = true
	s := &secureRig{ca: newAuthority(t), files: make(map[string]files), data: content(3<<20 + 5)}
	s.rig = newRig(t, source, func(c *Config) {
		f := filesIn(t.TempDir())
		s.ca.issue(f, []string{c.Self}, nil, s.ca)
		s.files[c.Self], c.TLS = f, readTLS(t, f)
		if change != nil {
			change(c)
		}
	}, b)
	s.name = s.owned(1)
	put(s.name, s.data, source, b)
	return s
}

// ask connects again, and requests an Info of b.
func (s *secureRig) ask() error {
	s.nodes[0].probes.CloseIdleConnections()
	_, err := s.nodes[0].Ask(context.Background(), "b")
	return err
}

// Nodes with certificates of one authority read from each other, over connections that TLS encrypts.
func TestTLS(t *testing.T) {
	s := newSecureRig(t, nil)
	s.wantContent(s.open(s.name), s.data)
	if got := s.stats(0, 1); got.Reads == 0 || got.Failovers != 0 || s.source.opened() != 0 {
		t.Errorf("counters: %+v; the source was opened %d times", got, s.source.opened())
	}
	// Somebody else with the right certificate lacks the secret.
	id := s.nodes[0].identity()
	c, err := tls.Dial("tcp", s.nodes[0].peers[1].address, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{id.certificate}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	req := s.nodes[0].peers[1].request(filePath, s.name)
	io.WriteString(c, "GET "+req.url("b").RequestURI()+" HTTP/1.1\r\nHost: b\r\n"+hRequest+": "+req.words()+" "+noMAC+"\r\n\r\n")
	if answer, _ := io.ReadAll(c); !strings.HasPrefix(string(answer), "HTTP/1.1 401 ") {
		t.Errorf("without the secret: %q", answer)
	}
}

// A certificate that does not prove which node it is of is refused, on either side, and the cause is
// counted.
func TestTLSRefuses(t *testing.T) {
	other := newAuthority(t)
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	for _, tt := range []struct {
		name  string
		issue func(ca *authority, f files, node string)
		text  string // of the error; "": accepted
	}{
		{"by address", func(ca *authority, f files, _ string) { ca.issue(f, []string{"127.0.0.1"}, nil, ca) }, ""},
		{"wrong authority", func(ca *authority, f files, node string) { other.issue(f, []string{node}, nil, ca) }, "unknown"},
		{"wrong name", func(ca *authority, f files, _ string) { ca.issue(f, []string{"z", "127.0.0.2"}, nil, ca) }, "certificate is"},
		{"expired", func(ca *authority, f files, node string) { ca.issue(f, []string{node}, expired, ca) }, "expired"},
		{"without a usage", func(ca *authority, f files, node string) {
			ca.issue(f, []string{node}, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageEmailProtection} }, ca)
		}, "certificate"},
	} {
		for i, node := range []string{"a", "b"} {
			t.Run(tt.name+" of "+map[string]string{"a": "the client", "b": "the server"}[node], func(t *testing.T) {
				s := newSecureRig(t, nil)
				tt.issue(s.ca, s.files[node], node)
				s.nodes[i].cfg.TLS.force()
				s.wantContent(s.open(s.name), s.data)
				err := s.ask()
				got := s.stats(0, 1)
				switch {
				case tt.text == "" && (err != nil || got.Reads == 0 || got.Misses != Misses{}):
					t.Errorf("refused: %v; counters: %+v", err, got)
				case tt.text != "" && (Cause(err) != "tls" || !strings.Contains(err.Error(), tt.text)):
					t.Errorf("got %v, want an error with %q", err, tt.text)
				case tt.text != "" && (got.Reads != 0 || got.Misses.TLS != 1):
					t.Errorf("counters: %+v", got)
				}
			})
		}
	}
}

// The reason of a server that refuses a certificate is known, also if the client learns by a failed
// write that the connection has ended.
func TestTLSRefusesBeforeAWrite(t *testing.T) {
	s := newSecureRig(t, nil)
	newAuthority(t).issue(s.files["a"], []string{"a"}, nil, s.ca)
	s.nodes[0].cfg.TLS.force()
	p := s.nodes[0].peers[1]
	conn, err := s.nodes[0].transport.DialTLSContext(t.Context(), "tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	drivertest.Eventually(t, "a write fails", func() bool {
		_, err = io.WriteString(conn, "G")
		return err != nil
	})
	if m := p.missOf(err, broken); m.cause != otherTLS {
		t.Errorf("the cause is %d: %v", m.cause, err)
	}
}

// A node does not start with a certificate that the others would refuse, or with a key that others
// can read.
func TestReadTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	between := ca.intermediate()
	f := filesIn(t.TempDir())
	for _, tt := range []struct {
		name string
		make func()
		text string // of the error
	}{
		{"good", func() { ca.issue(f, []string{"b"}, nil, other, ca) }, ""},
		{"of an intermediate authority", func() {
			between.issue(f, []string{"b"}, nil, ca)
			appendFile(t, f.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: between.cert.Raw}))
		}, ""},
		{"of one that is missing", func() { between.issue(f, []string{"b"}, nil, ca) }, "unknown authority"},
		{"of another authority", func() { ca.issue(f, []string{"b"}, nil, other) }, "unknown authority"},
		{"expired", func() {
			ca.issue(f, []string{"b"}, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, ca)
		}, "expired"},
		{"of a client", func() {
			ca.issue(f, []string{"b"}, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] }, ca)
		}, "usage"},
		{"no authority", func() { ca.issue(f, []string{"b"}, nil) }, "has no certificates"},
		{"another key", func() {
			ca.issue(f, []string{"b"}, nil, ca)
			g := filesIn(t.TempDir())
			ca.issue(g, []string{"b"}, nil, ca)
			os.Rename(g.key, f.key)
		}, "private key does not match"},
		{"a key for all", func() {
			ca.issue(f, []string{"b"}, nil, ca)
			os.Chmod(f.key, 0o644)
		}, "chmod 600"},
		{"no key", func() { os.Remove(f.key) }, "no such file"},
	} {
		tt.make()
		_, err := ReadTLS(f.cert, f.key, f.ca)
		if tt.text == "" && err != nil || tt.text != "" && (err == nil || !strings.Contains(err.Error(), tt.text)) {
			t.Errorf("%s: got %v, want an error with %q", tt.name, err, tt.text)
		}
	}
	ca.issue(f, []string{"z"}, nil, ca)
	cfg := newRig(t, nil, nil).nodes[0].cfg
	cfg.TLS = readTLS(t, f)
	if n, err := New(cfg); err == nil {
		n.Close()
		t.Error("a certificate of another node: no error")
	}
}

// appendFile appends data to a file.
func appendFile(t *testing.T, path string, data []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
}

// Certificates and authorities that are replaced are used for the next connections, without a
// restart. Files that cannot be used change nothing.
func TestTLSIsReadAgain(t *testing.T) {
	s := newSecureRig(t, nil)
	next := newAuthority(t)
	renew := func(ca *authority, trusted ...*authority) {
		for i, node := range []string{"a", "b"} {
			ca.issue(s.files[node], []string{node}, nil, trusted...)
			s.nodes[i].cfg.TLS.again()
		}
	}
	serial := func() string {
		t.Helper()
		if err := s.ask(); err != nil {
			t.Fatal(err)
		}
		return s.nodes[1].identity().certificate.Leaf.Subject.CommonName
	}
	first := serial()
	renew(s.ca, s.ca, next)
	second := serial()
	renew(next, s.ca, next)
	third := serial()
	renew(next, next)
	fourth := serial()
	if first == second || second == third || third == fourth {
		t.Error("the certificate is that of before")
	}
	if err := os.WriteFile(s.files["b"].cert, []byte("half of a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.nodes[1].cfg.TLS.again()
	if got := serial(); got != fourth {
		t.Error("the certificate is not that of before the file was damaged")
	}
	s.ca.issue(s.files["a"], []string{"a"}, nil, s.ca)
	s.nodes[0].cfg.TLS.again()
	if err := s.ask(); Cause(err) != "tls" {
		t.Errorf("with an authority that is not trusted any more: %v", err)
	}
}

// A node with TLS and one without refuse each other, and say why.
func TestTLSAgainstPlain(t *testing.T) {
	for plain, want := range map[string]error{"a": ErrTLS, "b": ErrPlain} {
		t.Run("plain "+plain, func(t *testing.T) {
			s := newSecureRig(t, func(c *Config) {
				if c.Self == plain {
					c.TLS = nil
				}
			})
			// A plain server finds no end of a line in 3 of 1000 random messages, and then waits.
			drivertest.Eventually(t, want.Error(), func() bool { return errors.Is(s.ask(), want) })
			s.wantContent(s.open(s.name), s.data)
			if got := s.stats(0, 1); got.Misses.TLS != 1 || got.Reads != 0 {
				t.Errorf("counters: %+v", got)
			}
		})
	}
}

// A client without a certificate keeps no connection.
func TestTLSStrangers(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time limits of nodes that are stuck")
	}
	t.Parallel()
	s := newSecureRig(t, nil)
	for name, talk := range map[string]func(c net.Conn){
		"silent": func(net.Conn) {},
		"plain":  func(c net.Conn) { io.WriteString(c, "GET / HTTP/1.1\r\nHost: b\r\n\r\n") },
		"without a certificate": func(c net.Conn) {
			tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake()
		},
		"of another authority": func(c net.Conn) {
			other, f := newAuthority(t), filesIn(t.TempDir())
			other.issue(f, []string{"a"}, nil, other)
			cert := readTLS(t, f).current.Load().certificate
			tls.Client(c, &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return &cert, nil
			}}).Handshake()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := net.Dial("tcp", s.nodes[0].peers[1].address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			talk(c)
			c.SetReadDeadline(time.Now().Add(30 * time.Second))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is kept")
			}
		})
	}
}
