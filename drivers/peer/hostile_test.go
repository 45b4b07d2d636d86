package peer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/peer/roster"
)

// resign changes the line of an answer, and signs the answer again.
func resign(req *http.Request, rec *httptest.ResponseRecorder, change func(*answerLine)) {
	line, err := parseAnswerLine(rec.Header().Get(hAnswer))
	r, _, err2 := parseRequest(filePath, req.URL.Query(), req.Header)
	if err != nil || err2 != nil {
		panic("a message of the node is wrong")
	}
	if change != nil {
		change(line)
	}
	line.mac = line.proof(secret, r, rec.Code, rec.Header(), "")
	setLine(rec, line)
}

// setLine sets the line of an answer.
func setLine(rec *httptest.ResponseRecorder, line *answerLine) {
	rec.Header().Set(hAnswer, line.words()+" "+line.mac)
}

// send sends an answer.
func send(w http.ResponseWriter, rec *httptest.ResponseRecorder, body []byte) {
	for key, values := range rec.Header() {
		w.Header()[key] = values
	}
	w.WriteHeader(rec.Code)
	w.Write(body)
}

// hijack sends the header of an answer, and then what f writes to the connection.
func hijack(w http.ResponseWriter, rec *httptest.ResponseRecorder, f func(c net.Conn)) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer c.Close()
	io.WriteString(c, "HTTP/1.1 206 Partial Content\r\n")
	rec.Header().Write(c)
	io.WriteString(c, "\r\n")
	f(c)
}

// A peer that misbehaves is a miss: its readers get the right bytes from elsewhere, and the cause is
// counted.
func TestMisbehavingPeers(t *testing.T) {
	type answer = func(w http.ResponseWriter, req *http.Request, rec *httptest.ResponseRecorder)
	var recorded atomic.Pointer[httptest.ResponseRecorder]
	for _, tt := range []struct {
		name   string
		cause  func(Misses) int64
		answer answer
	}{
		{"wrong bytes", func(m Misses) int64 { return m.Corrupt }, func(w http.ResponseWriter, _ *http.Request, rec *httptest.ResponseRecorder) {
			body := rec.Body.Bytes()
			body[2<<20] ^= 1
			send(w, rec, body)
		}},
		{"wrong version", func(m Misses) int64 { return m.Corrupt }, func(w http.ResponseWriter, req *http.Request, rec *httptest.ResponseRecorder) {
			other := infoOf("file", rec.Body.Bytes())
			other.Mtime = mtime.Add(1)
			rec.Header().Set("ETag", versionTag(other))
			resign(req, rec, nil)
			send(w, rec, rec.Body.Bytes())
		}},
		{"another size", func(m Misses) int64 { return m.Broken }, func(w http.ResponseWriter, req *http.Request, rec *httptest.ResponseRecorder) {
			rec.Header().Set("Content-Range", strings.Replace(rec.Header().Get("Content-Range"), "/", "/1", 1))
			resign(req, rec, nil)
			send(w, rec, rec.Body.Bytes())
		}},
		{"another range", func(m Misses) int64 { return m.Broken }, func(w http.ResponseWriter, req *http.Request, rec *httptest.ResponseRecorder) {
			rec.Header().Set("Content-Range", strings.Replace(rec.Header().Get("Content-Range"), "bytes 0-", "bytes 1048576-", 1))
			resign(req, rec, nil)
			send(w, rec, rec.Body.Bytes())
		}},
		{"a part of a block", func(m Misses) int64 { return m.Broken }, func(w http.ResponseWriter, req *http.Request, rec *httptest.ResponseRecorder) {
			rec.Header().Set("Content-Range", strings.Replace(rec.Header().Get("Content-Range"), "-"+strconv.Itoa(3<<20+99), "-99", 1))
			rec.Header().Set("Content-Length", "100")
			resign(req, rec, nil)
			send(w, rec, rec.Body.Bytes()[:100])
		}},
		{"too few checksums", func(m Misses) int64 { return m.Broken }, func(w http.ResponseWriter, req *http.Request, rec *httptest.ResponseRecorder) {
			resign(req, rec, func(l *answerLine) { l.sums = "AAAA" })
			send(w, rec, rec.Body.Bytes())
		}},
		{"truncated", func(m Misses) int64 { return m.Broken }, func(w http.ResponseWriter, _ *http.Request, rec *httptest.ResponseRecorder) {
			hijack(w, rec, func(c net.Conn) { c.Write(rec.Body.Bytes()[:2<<20+5]) })
		}},
		{"reset", func(m Misses) int64 { return m.Broken }, func(w http.ResponseWriter, _ *http.Request, rec *httptest.ResponseRecorder) {
			hijack(w, rec, func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) })
		}},
		{"endless header", func(m Misses) int64 { return m.Broken }, func(w http.ResponseWriter, _ *http.Request, rec *httptest.ResponseRecorder) {
			c, _, _ := http.NewResponseController(w).Hijack()
			defer c.Close()
			for _, err := io.WriteString(c, "HTTP/1.1 206 Partial Content\r\n"); err == nil; {
				_, err = io.WriteString(c, "A: "+strings.Repeat("b", 1000)+"\r\n")
			}
		}},
		{"endless body", func(m Misses) int64 { return m.Broken }, func(w http.ResponseWriter, req *http.Request, rec *httptest.ResponseRecorder) {
			rec.Header().Del("Content-Length")
			resign(req, rec, nil)
			rec.Header().Set("Transfer-Encoding", "chunked")
			hijack(w, rec, func(c net.Conn) {
				for _, err := io.WriteString(c, "1\r\na\r\n"); err == nil; {
					_, err = io.WriteString(c, "1\r\na\r\n")
				}
			})
		}},
		{"redirect", func(m Misses) int64 { return m.Unproven + m.Protocol }, func(w http.ResponseWriter, req *http.Request, _ *httptest.ResponseRecorder) {
			http.Redirect(w, req, "http://127.0.0.1:1/", http.StatusFound)
		}},
		{"one byte a second", func(m Misses) int64 { return m.Stuck }, func(w http.ResponseWriter, req *http.Request, rec *httptest.ResponseRecorder) {
			hijack(w, rec, func(c net.Conn) {
				for _, b := range rec.Body.Bytes() {
					c.Write([]byte{b})
					c.SetReadDeadline(time.Now().Add(time.Second))
					if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
						return // the client has left
					}
				}
			})
		}},
		{"wrong HMAC", func(m Misses) int64 { return m.Unproven }, func(w http.ResponseWriter, _ *http.Request, rec *httptest.ResponseRecorder) {
			line, _ := parseAnswerLine(rec.Header().Get(hAnswer))
			line.mac = secret.mac("answer", "something else")
			setLine(rec, line)
			send(w, rec, rec.Body.Bytes())
		}},
		{"no HMAC", func(m Misses) int64 { return m.Unproven }, func(w http.ResponseWriter, _ *http.Request, rec *httptest.ResponseRecorder) {
			line, _ := parseAnswerLine(rec.Header().Get(hAnswer))
			line.mac = noMAC
			setLine(rec, line)
			send(w, rec, rec.Body.Bytes())
		}},
		{"other checksums", func(m Misses) int64 { return m.Unproven }, func(w http.ResponseWriter, _ *http.Request, rec *httptest.ResponseRecorder) {
			body := content(3<<20 + 100 + 1)[:3<<20+100]
			var sums []uint32
			for off := 0; off < len(body); off += block {
				sums = append(sums, drivers.Checksum(0, body[off:min(off+block, len(body))]))
			}
			line, _ := parseAnswerLine(rec.Header().Get(hAnswer))
			line.sums = encodeChecksums(sums)
			setLine(rec, line)
			send(w, rec, body)
		}},
		{"replayed answer", func(m Misses) int64 { return m.Unproven }, func(w http.ResponseWriter, req *http.Request, rec *httptest.ResponseRecorder) {
			recorded.CompareAndSwap(nil, rec) // of the first request
			send(w, recorded.Load(), recorded.Load().Body.Bytes())
		}},
		{"refuses the secret", func(m Misses) int64 { return m.Unproven }, func(w http.ResponseWriter, _ *http.Request, rec *httptest.ResponseRecorder) {
			setLine(rec, &answerLine{mac: noMAC})
			w.Header()[hAnswer] = rec.Header()[hAnswer]
			w.WriteHeader(http.StatusUnauthorized)
		}},
		{"another protocol", func(m Misses) int64 { return m.Protocol }, func(w http.ResponseWriter, _ *http.Request, rec *httptest.ResponseRecorder) {
			w.Header().Set(hAnswer, strconv.Itoa(Protocol+1)+" and something else")
			w.WriteHeader(http.StatusUpgradeRequired)
		}},
		{"an unknown status", func(m Misses) int64 { return m.Broken }, func(w http.ResponseWriter, req *http.Request, rec *httptest.ResponseRecorder) {
			rec.Code = http.StatusTeapot
			rec.Header().Set("Content-Length", "0")
			resign(req, rec, nil)
			send(w, rec, nil)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, _, _, name, data := threeNodes(t, 3<<20+100)
			read := func() Misses {
				r.hostile(1, tt.answer)
				if tt.name == "replayed answer" {
					recorded.Store(nil)
					r.wantContent(r.open(name), data)
				}
				r.wantContent(r.open(name), data)
				return r.stats(0, 1).Misses
			}
			misses := read()
			for range 4 {
				if misses.Stuck == 0 || tt.cause(misses) == misses.Stuck {
					break
				}
				r, _, _, name, data = threeNodes(t, 3<<20+100) // this machine was so slow that the peer seemed stuck
				misses = read()
			}
			if got := r.stats(0, 1); tt.cause(got.Misses) != 1 || got.Failovers != 1 {
				t.Errorf("counters of the peer: %+v", got)
			}
			if got := r.stats(0, 2).Reads; got != 1 || r.source.opened() != 0 {
				t.Errorf("%d reads of the second choice, want 1; the source was opened %d times", got, r.source.opened())
			}
		})
	}
}

// Two nodes that disagree about the job refuse each other, and say why.
func TestNodesThatDisagree(t *testing.T) {
	others, _ := roster.New([]roster.Node{{Name: "a"}, {Name: "b"}, {Name: "z"}})
	otherSecret, _ := ParseSecret(NewSecret())
	for _, tt := range []struct {
		name   string
		change func(*Config)
		cause  func(Misses) int64
		text   string
	}{
		{"roster", func(c *Config) { c.Roster = others }, func(m Misses) int64 { return m.Roster }, "has the hash"},
		{"dataset", func(c *Config) { c.Dataset = "other" }, func(m Misses) int64 { return m.Misdirected }, `serves dataset "other"`},
		{"secret", func(c *Config) { c.Secret = otherSecret }, func(m Misses) int64 { return m.Unproven }, "not signed with the secret"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _, _, name, data := threeNodes(t, 1000)
			cfg := r.nodes[1].cfg
			tt.change(&cfg)
			other, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			s, err := other.Listen("127.0.0.1:0", r.servers[1].files)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			r.setAddress(1, s.Addr().String())
			_, err = r.nodes[0].peers[1].get(context.Background(), name, infoOf(name, data), 0, span{0, 1000})
			if err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got error %v, want one with %q", err, tt.text)
			}
			if got := r.stats(0, 1).Misses; tt.cause(got) != 1 {
				t.Errorf("misses: %+v", got)
			}
			r.wantContent(r.open(name), data)
		})
	}
}

// A node whose address is that of another one is refused.
func TestWrongAddress(t *testing.T) {
	r, _, _, name, data := threeNodes(t, 1000)
	r.setAddress(1, r.nodes[0].peers[2].address)
	r.wantContent(r.open(name), data)
	if got := r.stats(0, 1).Misses; got.Misdirected != 1 {
		t.Errorf("misses: %+v", got)
	}
}

// A node that is stopped accepts connections and answers nothing, not even a ping. It is left.
func TestStoppedNode(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time limits of nodes that are stuck")
	}
	t.Parallel()
	r, _, _, name, data := threeNodes(t, 1000)
	l, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r.setAddress(1, l.Addr().String())
	r.wantContent(r.open(name), data)
	if got := r.stats(0, 1); got.Misses.Stuck != 1 || got.Failovers != 1 {
		t.Errorf("counters: %+v", got)
	}
	if got := r.stats(0, 2).Reads; got != 1 || r.source.opened() != 0 {
		t.Errorf("%d reads of the second choice, want 1; the source was opened %d times", got, r.source.opened())
	}
}

// A node that waits for its source is not left, however long that takes: otherwise all nodes would
// turn to the source at once.
func TestLiveNodeThatWaits(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time limits of nodes that are stuck")
	}
	t.Parallel()
	r, b, _, name, data := threeNodes(t, 1000)
	b.copies = false
	var pings atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == pingPath {
			pings.Add(1)
		}
		r.servers[1].ServeHTTP(w, req)
	}))
	defer server.Close()
	r.setAddress(1, strings.TrimPrefix(server.URL, "http://"))
	b.beforeRead(func(context.Context, int64) error {
		drivertest.Eventually(t, "more pings than a stuck node has", func() bool { return pings.Load() > maxStalls })
		return nil
	})
	r.wantContent(r.open(name), data)
	if got := r.stats(0, 1); got.Reads != 1 || got.Failovers != 0 {
		t.Errorf("counters: %+v", got)
	}
	if r.stats(0, 2).Reads != 0 || r.source.opened() != 0 {
		t.Error("the file was read elsewhere")
	}
}

// A node that answers pings, and neither waits for its source nor sends anything, is left.
func TestLiveNodeThatIsStuck(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the time limits of nodes that are stuck")
	}
	t.Parallel()
	r, _, _, name, data := threeNodes(t, 1000)
	done := make(chan struct{})
	r.hostile(1, func(http.ResponseWriter, *http.Request, *httptest.ResponseRecorder) { <-done })
	r.wantContent(r.open(name), data)
	close(done)
	if got := r.stats(0, 1).Misses; got.Stuck != 1 {
		t.Errorf("misses: %+v", got)
	}
}
