package blobtest

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// payload returns n bytes without repetitions.
func payload(n int) []byte {
	data := make([]byte, n)
	x := uint32(1)
	for i := range data {
		x = x*1664525 + 1013904223
		data[i] = byte(x >> 24)
	}
	return data
}

// origin starts a server that returns object for every path, and a listing with chunked
// encoding.
func origin(t testing.TB, object []byte) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"1"`)
		w.Header().Set("X-Goog-Generation", "1700")
		if r.URL.Query().Has("list-type") {
			io.WriteString(w, "<List>")
			http.NewResponseController(w).Flush()
			io.WriteString(w, strings.Repeat("<Key>", 1000))
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(object))
	}))
	t.Cleanup(s.Close)
	return s
}

// proxied starts a Proxy for an origin, and returns it with a client.
func proxied(t testing.TB, object []byte, plan Plan) (*Proxy, *http.Client) {
	p := NewProxy(t, origin(t, object).URL, plan)
	return p, httpClient(t)
}

// get sends a GET and reads the whole response. header has names and values in turn.
func get(t testing.TB, client *http.Client, url string, header ...string) (*http.Response, []byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// always returns Plan.Faults for a fault in every request.
func always(f Fault) map[Fault]float64 { return map[Fault]float64{f: 1} }

// A Proxy without faults forwards requests and responses unchanged, and counts them.
func TestProxyPassesThrough(t *testing.T) {
	object := payload(1 << 20)
	p, client := proxied(t, object, Plan{})
	for _, test := range []struct {
		header []string
		status int
		want   []byte
	}{
		{nil, 200, object},
		{[]string{"Range", "bytes=1000-1999"}, 206, object[1000:2000]},
		{[]string{"If-Match", `"1"`, "Range", "bytes=0-0"}, 206, object[:1]},
		{[]string{"If-Match", `"2"`}, 412, nil},
	} {
		resp, body, err := get(t, client, p.URL+"/bucket/key", test.header...)
		if err != nil || resp.StatusCode != test.status || !bytes.Equal(body, test.want) {
			t.Errorf("GET with %q: got %+v, %d bytes, error %v, or wrong data", test.header, resp, len(body), err)
		}
	}
	resp, err := client.Head(p.URL + "/bucket/key")
	if err != nil || resp.ContentLength != 1<<20 || resp.Header.Get("Etag") != `"1"` {
		t.Fatalf("HEAD: got %+v, error %v", resp, err)
	}
	resp.Body.Close()
	_, list, err := get(t, client, p.URL+"/bucket?list-type=2")
	if err != nil || len(list) != 5006 {
		t.Errorf("GET of a list: got %d bytes, error %v", len(list), err)
	}
	got := p.Stats()
	if got.Gets != 4 || got.Lists != 1 || got.Heads != 1 || got.Others != 0 || got.Conns != 1 ||
		got.Bytes != 1<<20+1000+1+5006 || got.Broken != 0 || len(got.Faults) != 0 {
		t.Errorf("Stats: got %+v", got)
	}
}

// The parts of a request that a signature covers are forwarded unchanged.
func TestProxyPreservesSignedParts(t *testing.T) {
	var got *http.Request
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	}))
	defer server.Close()
	p, client := NewProxy(t, server.URL, Plan{}), httpClient(t)
	uri := "/bucket/a//b/../%2F%20+%C3%A9?prefix=a%2Fb&x&delimiter=/&y=%20+"
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, p.URL, strings.NewReader("content"))
	if err != nil {
		t.Fatal(err)
	}
	req.URL.Opaque = uri
	req.Host = "bucket.example.org"
	req.Header = http.Header{
		"Authorization": {"AWS4-HMAC-SHA256 Credential=x"}, "X-Amz-Date": {"20260101T000000Z"},
		"If-Match": {`"e"`}, "X-Amz-Meta-Two": {"a", "b"}, "User-Agent": nil,
	}
	want := req.Header.Clone()
	delete(want, "User-Agent")
	want.Set("Content-Length", "7")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	got.Header.Del("Accept-Encoding") // added by the client
	if got.RequestURI != uri || got.Host != "bucket.example.org" || got.Method != http.MethodPut || string(body) != "content" {
		t.Errorf("got %s %s, Host %s, body %q", got.Method, got.RequestURI, got.Host, body)
	}
	if !maps.EqualFunc(got.Header, want, func(a, b []string) bool { return strings.Join(a, "|") == strings.Join(b, "|") }) {
		t.Errorf("got header %v, want %v", got.Header, want)
	}
}

// An error response has the format of the request's protocol, and keeps the connection.
func TestProxyErrorResponses(t *testing.T) {
	p, client := proxied(t, payload(100_000), Plan{})
	for fault, want := range errorResponses {
		p.SetPlan(Plan{Faults: always(fault), RetryAfter: 7 * time.Second})
		for path, form := range map[string]string{
			"/bucket/key":                           "<Code>" + want.code + "</Code><Message>" + Message,
			"/storage/v1/b/bucket/o/key?alt=media":  `"reason":"` + want.code,
			"/devstoreaccount1/bucket?comp=list":    "<Code>" + want.code,
			"/storage/v1/b/bucket/o?prefix=a%2Fb%2": `"message":"` + Message,
		} {
			resp, body, err := get(t, client, p.URL+path)
			if err != nil || resp.StatusCode != want.status || !strings.Contains(string(body), form) {
				t.Errorf("%s of %s: got %+v, body %s, error %v", fault, path, resp, body, err)
				continue
			}
			wait := ""
			if fault == RetryAfter {
				wait = "7"
			}
			if got := resp.Header.Get("Retry-After"); got != wait {
				t.Errorf("%s: got Retry-After %q, want %q", fault, got, wait)
			}
		}
		if got := p.Stats().Faults[fault]; got != 4 {
			t.Errorf("%s: counted %d, want 4", fault, got)
		}
	}
	if got := p.Stats(); got.Conns != 1 {
		t.Errorf("got %d connections, want 1: error responses must keep the connection", got.Conns)
	}
}

// Reset, ResetBody and Truncated end the connection, with and without TLS.
func TestProxyBreaksConnections(t *testing.T) {
	object := payload(100_000)
	for _, secure := range []bool{false, true} {
		for _, test := range []struct {
			fault   Fault
			err     error
			partial bool
		}{
			{Reset, syscall.ECONNRESET, false},
			{ResetBody, syscall.ECONNRESET, true},
			{Truncated, io.ErrUnexpectedEOF, true},
		} {
			p, client := proxied(t, object, Plan{})
			if secure {
				p = NewTLSProxy(t, p.backend.String(), Plan{})
				client.Transport.(*http.Transport).TLSClientConfig = p.server.Client().Transport.(*http.Transport).TLSClientConfig
			}
			for seed := range uint64(5) {
				p.SetPlan(Plan{Seed: seed, Faults: always(test.fault)})
				_, body, err := get(t, client, p.URL+"/bucket/key")
				if !errors.Is(err, test.err) {
					t.Errorf("%s (TLS: %v): got error %v, want %v", test.fault, secure, err, test.err)
				}
				if len(body) >= len(object) || !bytes.HasPrefix(object, body) || len(body) > 0 && !test.partial {
					t.Errorf("%s (TLS: %v): got %d bytes, or wrong data", test.fault, secure, len(body))
				}
			}
			_, body, err := get(t, client, p.URL+"/bucket?list-type=2") // chunked
			if err == nil || len(body) >= 5006 {
				t.Errorf("%s of a list: got %d bytes, error %v", test.fault, len(body), err)
			}
			if got := p.Stats().Faults[test.fault]; got < 6 { // more if net/http repeats a GET
				t.Errorf("%s: counted %d, want at least 6", test.fault, got)
			}
			client.CloseIdleConnections()
		}
	}
}

// ShortLength announces half of a body and closes the connection.
func TestProxyShortLength(t *testing.T) {
	object := payload(100_000)
	p, client := proxied(t, object, Plan{Faults: always(ShortLength)})
	resp, body, err := get(t, client, p.URL+"/bucket/key", "Range", "bytes=0-9999")
	if err != nil || resp.ContentLength != 5000 || !bytes.Equal(body, object[:5000]) {
		t.Errorf("got %+v, %d bytes, error %v", resp, len(body), err)
	}
	if got := resp.Header.Get("Content-Range"); got != "bytes 0-9999/100000" {
		t.Errorf("got Content-Range %q", got)
	}
	if _, body, err := get(t, client, p.URL+"/bucket/key", "Range", "bytes=0-0"); err != nil || len(body) != 1 {
		t.Errorf("body of one byte: got %d bytes, error %v", len(body), err)
	}
	if got := p.Stats(); got.Faults[ShortLength] != 1 || got.Conns != 2 {
		t.Errorf("Stats: got %+v", got)
	}
}

// StaleETag changes the ETag and the generation, and nothing else.
func TestProxyStaleETag(t *testing.T) {
	p, client := proxied(t, payload(100), Plan{Faults: always(StaleETag)})
	resp, body, err := get(t, client, p.URL+"/bucket/key", "If-Match", `"1"`)
	if err != nil || resp.StatusCode != 200 || len(body) != 100 {
		t.Fatalf("got %+v, error %v", resp, err)
	}
	if got := resp.Header; got.Get("Etag") != `"stale"` || got.Get("X-Goog-Generation") != "1699" {
		t.Errorf("got header %v", got)
	}
}

// Each delay takes at least the configured time. There is no upper bound, because the
// machine may be busy.
func TestProxyDelays(t *testing.T) {
	const wait = 50 * time.Millisecond
	object := payload(20_000)
	for name, plan := range map[string]Plan{
		"latency":   {Latency: wait},
		"late":      {Faults: always(Late), Lateness: wait},
		"slow":      {Faults: always(Slow), SlowRate: 20_000 * int64(time.Second) / int64(wait+burst)},
		"rate":      {Rate: 20_000 * int64(time.Second) / int64(wait+burst)},
		"conn rate": {ConnRate: 20_000 * int64(time.Second) / int64(wait+burst)},
	} {
		p, client := proxied(t, object, plan)
		start := time.Now()
		_, body, err := get(t, client, p.URL+"/bucket/key")
		if took := time.Since(start); took < wait || err != nil || !bytes.Equal(body, object) {
			t.Errorf("%s: got %d bytes after %v, error %v; want a delay of %v", name, len(body), took, err, wait)
		}
	}
}

// All connections share Plan.Rate.
func TestProxyRateIsShared(t *testing.T) {
	const wait = 100 * time.Millisecond
	p, client := proxied(t, payload(10_000), Plan{Rate: 40_000 * int64(time.Second) / int64(wait+burst)})
	start := time.Now()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, _, err := get(t, client, p.URL+"/bucket/key"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(start); took < wait {
		t.Errorf("4 bodies took %v, want at least %v", took, wait)
	}
}

// When the test ends, the Proxy ends requests that are delayed and bodies that are slow.
func TestProxyClosesDuringRequests(t *testing.T) {
	client := httpClient(t)
	var wg sync.WaitGroup
	t.Run("requests", func(t *testing.T) {
		for _, plan := range []Plan{{Latency: time.Hour}, {Rate: 1}} {
			p := NewProxy(t, origin(t, payload(100_000)).URL, plan)
			wg.Go(func() {
				if resp, err := client.Get(p.URL + "/bucket/key"); err == nil {
					if _, err := io.ReadAll(resp.Body); err == nil {
						t.Error("the request succeeds")
					}
					resp.Body.Close()
				}
			})
			for p.Stats().Gets == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	})
	wg.Wait()
}

// A client that cancels its request does not wait for the delay of the Proxy.
func TestProxyClientCancels(t *testing.T) {
	p, client := proxied(t, payload(100), Plan{Latency: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/bucket/key", nil)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := client.Do(req); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	p.SetPlan(Plan{})
	if _, body, err := get(t, client, p.URL+"/bucket/key"); err != nil || len(body) != 100 {
		t.Errorf("next request: got %d bytes, error %v", len(body), err)
	}
}

// When the server does not accept connections, the Proxy resets that of the client.
func TestProxyServerGone(t *testing.T) {
	server := origin(t, nil)
	p, client := NewProxy(t, server.URL, Plan{}), httpClient(t)
	server.Close()
	if _, _, err := get(t, client, p.URL+"/bucket/key"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got error %v", err)
	}
	if p.Stats().Broken == 0 {
		t.Error("Stats: Broken is 0")
	}
}

// Clients of a Proxy with TLS must trust its certificate.
func TestProxyTLS(t *testing.T) {
	p, client := NewTLSProxy(t, origin(t, payload(100)).URL, Plan{}), httpClient(t)
	_, _, err := get(t, client, p.URL+"/bucket/key")
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); !ok {
		t.Errorf("without the certificate: got error %v", err)
	}
	trusting := p.server.Client()
	if _, body, err := get(t, trusting, p.URL+"/bucket/key"); err != nil || len(body) != 100 {
		t.Errorf("with the certificate: got %d bytes, error %v", len(body), err)
	}
}

// results returns the results of n successive requests.
func results(t *testing.T, p *Proxy, client *http.Client, n int) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		get(t, client, p.URL+"/bucket?list-type=2") // not selected by Plan.Match
		resp, _, err := get(t, client, p.URL+"/bucket/"+strconv.Itoa(i))
		switch {
		case resp == nil:
			b.WriteString("reset ")
		case err != nil:
			b.WriteString("truncated ") // the number of received bytes depends on the kernel
		default:
			b.WriteString(resp.Status + " ")
		}
	}
	return b.String()
}

// The same seed has the same faults, at the configured probabilities.
func TestProxyIsDeterministic(t *testing.T) {
	// Each request has a new connection: net/http repeats a GET only on a reused one,
	// and that would be one more request.
	p := NewProxy(t, origin(t, payload(10_000)).URL, Plan{})
	client := httpClient(t)
	client.Transport.(*http.Transport).DisableKeepAlives = true
	plan := Plan{
		Seed: 1, Match: ObjectGets,
		Faults: map[Fault]float64{Unavailable: 0.2, Reset: 0.2, Truncated: 0.2},
	}
	var got [3]string
	for i, seed := range []uint64{1, 1, 2} {
		plan.Seed = seed
		p.SetPlan(plan)
		got[i] = results(t, p, client, 100)
	}
	if got[0] != got[1] {
		t.Errorf("the same seed has different results:\n%s\n%s", got[0], got[1])
	}
	if got[0] == got[2] {
		t.Error("another seed has the same results")
	}
	stats := p.Stats()
	for fault := range plan.Faults {
		if n := stats.Faults[fault]; n < 30 || n > 90 {
			t.Errorf("%s: got %d of 300 requests, want about 60", fault, n)
		}
	}
	if stats.Lists != 300 || stats.Gets != 300 {
		t.Errorf("got %d lists and %d gets, want 300 of each", stats.Lists, stats.Gets)
	}
}

// decide is deterministic, and has the configured delays and probabilities.
func TestPlanDecides(t *testing.T) {
	plan := Plan{Seed: 3, Latency: time.Second, Jitter: time.Second, Lateness: time.Minute, Faults: map[Fault]float64{Late: 0.25}}
	a, b := newPlan(plan), newPlan(plan)
	late, early := 0, 0
	for range 1000 {
		got := a.decide(nil)
		if again := b.decide(nil); got != again {
			t.Fatalf("the same seed decides %+v and %+v", got, again)
		}
		latency := got.latency - time.Second
		if got.fault == Late {
			late++
			latency -= time.Minute
		}
		if latency < 0 || latency >= time.Second {
			t.Fatalf("got latency %v", got.latency)
		}
		if latency < time.Second/2 {
			early++
		}
	}
	if late < 200 || late > 300 || early < 400 || early > 600 {
		t.Errorf("of 1000 requests %d are late, want about 250; %d wait for less than half of the jitter, want about 500", late, early)
	}
}

// newPlan panics if a probability is negative, or if their sum is more than 1.
func TestInvalidPlan(t *testing.T) {
	for _, faults := range []map[Fault]float64{{Reset: 0.6, Late: 0.5}, {Reset: -0.1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("newPlan accepts %v", faults)
				}
			}()
			newPlan(Plan{Faults: faults})
		}()
	}
}

func TestKindOf(t *testing.T) {
	for _, test := range []struct {
		method, uri string
		want        RequestKind
	}{
		{"GET", "/bucket/key", Get},
		{"GET", "/bucket/a/b?x-id=GetObject", Get},
		{"GET", "/bucket?list-type=2&prefix=a%2F", List},
		{"GET", "/bucket/?list-type=2", List},
		{"GET", "/bucket", Other},
		{"GET", "/", Other},
		{"PUT", "/bucket/key", Other},
		{"HEAD", "/bucket/key", Head},
		{"GET", "/devstoreaccount1/bucket/key", Get},
		{"GET", "/devstoreaccount1/bucket?restype=container&comp=list", List},
		{"GET", "/devstoreaccount1/bucket?restype=container", Other},
		{"GET", "/devstoreaccount1/bucket/key?comp=metadata", Other},
		{"GET", "/storage/v1/b/bucket/o?delimiter=%2F", List},
		{"GET", "/storage/v1/b/bucket/o/a%2Fb?alt=media", Get},
		{"GET", "/storage/v1/b/bucket/o/a%2Fb?alt=json", Head},
		{"GET", "/storage/v1/b/bucket", Other},
		{"POST", "/storage/v1/b", Other},
	} {
		u, err := url.ParseRequestURI(test.uri)
		if err != nil {
			t.Fatal(err)
		}
		if got := KindOf(&http.Request{Method: test.method, URL: u}); got != test.want {
			t.Errorf("%s %s: got %d, want %d", test.method, test.uri, got, test.want)
		}
	}
}

// BenchmarkProxy compares GETs with and without a Proxy.
func BenchmarkProxy(b *testing.B) {
	object := payload(8 << 20)
	server := origin(b, object)
	p, client := NewProxy(b, server.URL, Plan{}), httpClient(b)
	for name, url := range map[string]string{"direct": server.URL, "proxy": p.URL} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(object)))
			for b.Loop() {
				resp, err := client.Get(url + "/bucket/key")
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, make([]byte, 256<<10))
				if err != nil || n != int64(len(object)) {
					b.Fatalf("got %d bytes, error %v", n, err)
				}
				resp.Body.Close()
			}
		})
	}
}
