package peer

import (
	"errors"
	"math"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A sequence number is admitted once, in any order within the window, and never below it.
func TestReplays(t *testing.T) {
	var r replays
	now := time.Now()
	client := newInstance()
	for _, tt := range []struct {
		n    uint64
		want error
	}{
		{5, nil}, {5, errReplayed}, {4, nil}, {7, nil}, {6, nil}, {7, errReplayed}, {4, errReplayed}, {1, nil},
		{window + 3, nil}, {3, errReplayed}, {5, errReplayed}, {8, nil}, {8, errReplayed}, {window + 3, errReplayed},
		{5 * window, nil}, {4*window + 1, nil}, {4 * window, errReplayed}, {5 * window, errReplayed},
		{math.MaxUint64, nil}, {math.MaxUint64, errReplayed}, {math.MaxUint64 - 1, nil},
	} {
		if got := r.admit(nonce(client, tt.n), now.Add(lifetime), now); got != tt.want {
			t.Errorf("sequence number %d: got %v, want %v", tt.n, got, tt.want)
		}
	}
	if got := r.admit(nonce(newInstance(), 5), now.Add(lifetime), now); got != nil {
		t.Errorf("another client: %v", got)
	}
	for _, bad := range []string{"", "5", client, client + "-", client + "--5", "x-5"} {
		if r.admit(bad, now.Add(lifetime), now) == nil {
			t.Errorf("nonce %q is admitted", bad)
		}
	}
}

// A client is forgotten when its requests have expired, and not before.
func TestReplaysAreBounded(t *testing.T) {
	var r replays
	now := time.Now()
	old := newInstance()
	r.admit(nonce(old, 1), now.Add(lifetime), now)
	for i := range 100 {
		r.admit(nonce(newInstance(), 1), now.Add(lifetime), now.Add(time.Duration(i)*lifetime/200))
	}
	if len(r.clients) != 101 {
		t.Errorf("%d clients, want 101", len(r.clients))
	}
	later := now.Add(2*lifetime + 1)
	r.admit(nonce(newInstance(), 1), later.Add(lifetime), later)
	if len(r.clients) != 1 {
		t.Errorf("%d clients after the expiry, want 1", len(r.clients))
	}
}

// A peer that has failed is skipped for growing pauses, each of which ends with one ping.
func TestPausesGrow(t *testing.T) {
	var h health
	now := time.Now()
	if ok, _ := h.use(true, now); !ok {
		t.Fatal("a new peer is not used")
	}
	h.fail(now)
	h.fail(now) // of another request in flight
	for pause := time.Second; pause < 3*maxPause; pause *= 2 {
		now = now.Add(min(pause, maxPause) - time.Millisecond)
		if ok, ping := h.use(true, now); ok || ping {
			t.Fatalf("before the end of the pause of %v: used %v, ping %v", pause, ok, ping)
		}
		now = now.Add(time.Millisecond)
		if ok, ping := h.use(true, now); ok || !ping {
			t.Fatalf("after the pause of %v: used %v, ping %v", pause, ok, ping)
		}
		if ok, ping := h.use(true, now); ok || ping {
			t.Fatal("a second ping")
		}
		h.pinged(false, now)
	}
	h.pinged(true, now)
	if ok, _ := h.use(true, now); !ok || !h.isUp(true, now) {
		t.Error("not used after a successful ping")
	}
	h.fail(now)
	if ok, ping := h.use(true, now.Add(maxPause-1)); ok || ping {
		t.Error("a ping alone has reset the pauses")
	}
	h.pinged(true, now)
	h.succeed(now)
	h.fail(now)
	if _, ping := h.use(true, now.Add(firstPause)); !ping {
		t.Error("an answer has not reset the pauses")
	}
}

// A peer that is believed to be dead is skipped until a ping succeeds; not if it has just answered.
func TestBeliefs(t *testing.T) {
	var h health
	now := time.Now()
	if ok, ping := h.use(false, now); ok || !ping {
		t.Errorf("used %v, ping %v; want a ping", ok, ping)
	}
	h.pinged(true, now)
	if ok, _ := h.use(false, now.Add(trust)); !ok {
		t.Error("not used after a successful ping")
	}
	if ok, ping := h.use(false, now.Add(trust+1)); ok || !ping {
		t.Errorf("later: used %v, ping %v; want a ping", ok, ping)
	}
}

// A peer that is believed to be dead is not up, before a read needs it; nor is one that has failed.
func TestIsUp(t *testing.T) {
	var h health
	now := time.Now()
	if !h.isUp(true, now) || h.isUp(false, now) {
		t.Error("a new peer is up exactly if it is believed to be alive")
	}
	h.succeed(now)
	if !h.isUp(false, now.Add(trust)) || h.isUp(false, now.Add(trust+1)) {
		t.Error("an answer is trusted for some time")
	}
	h.fail(now)
	if h.isUp(true, now) {
		t.Error("a peer that has failed is up")
	}
}

// Requests and parts of headers are parsed as they were formatted.
func TestFormats(t *testing.T) {
	for _, info := range []drivers.Info{
		{Mode: regular, Size: 0, Mtime: time.Unix(0, 0)},
		{Mode: regular, Size: math.MaxInt64, Mtime: time.Unix(1<<40, 999999999), Version: "\"a b\"\xff"},
		{Mode: regular, Size: 5, Mtime: time.Unix(-5, 1), Version: "etag"},
	} {
		got, err := parseVersionTag(versionTag(info))
		if err != nil || !got.SameVersion(info) || got.Version != info.Version {
			t.Errorf("%+v: got %+v, %v", info, got, err)
		}
	}
	r := &request{path: filePath, name: "caf\xe9 &=%\n", rng: "bytes=0-1", version: `"1 2.3 "`, dataset: "a/b c",
		roster: "r", from: "ä b", to: "c", instance: "i", rank: "1", nonce: "n", expiry: "5"}
	u := r.url("h:1")
	got, mac, err := parseRequest(u.Path, u.Query(), r.header("mac"))
	if err != nil || *got != *r || mac != "mac" {
		t.Errorf("got %+v, %q, %v", got, mac, err)
	}
}

// Whatever a header has, it is refused, or means what it says.
func FuzzHeaders(f *testing.F) {
	f.Add("bytes=0-1048575", "bytes 0-5/6", `"5 1.000000002 v"`, "AAAAAA==", "00000000000000000000000000000000-5", "name=a", "2 5 waiting AAAA mac")
	f.Add("bytes=9223372036854775807-9223372036854775807", "bytes 5-4/1", `"`, "", "-", "%", "2 d%20e r a b i 0 00000000000000000000000000000000-5 5 mac")
	f.Fuzz(func(t *testing.T, rng, contentRange, version, sums, n, query, line string) {
		if s, err := parseRange(rng); err == nil && (s.off < 0 || s.off%block != 0 || s.n < 1 || s.n > maxRange || s.off+s.n < 0) {
			t.Errorf("range %q: %+v", rng, s)
		}
		if s, size, err := parseContentRange(contentRange); err == nil {
			again, size2, err := parseContentRange(s.contentRange(size))
			if err != nil || again != s || size2 != size || s.n < 1 || s.off < 0 || size < 0 {
				t.Errorf("content range %q: %+v of %d", contentRange, s, size)
			}
		}
		if info, err := parseVersionTag(version); err == nil {
			again, err := parseVersionTag(versionTag(info))
			if err != nil || again != info || info.Size < 0 || !info.IsRegular() {
				t.Errorf("version %q: %+v", version, info)
			}
		}
		for blocks := range int64(10) {
			got, err := parseChecksums(sums, blocks)
			if err == nil && int64(len(got)) != blocks {
				t.Errorf("checksums %q: %d of %d", sums, len(got), blocks)
			}
		}
		if instance, sequence, err := parseNonce(n); err == nil {
			if i, s, err := parseNonce(nonce(instance, sequence)); i != instance || s != sequence || err != nil {
				t.Errorf("nonce %q", n)
			}
		}
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		if l, err := parseAnswerLine(line); err == nil && l.words()+" "+l.mac != line {
			t.Errorf("answer line %q: %+v", line, l)
		}
		h := http.Header{hRequest: {line}, "Range": {rng}, "If-Match": {version}}
		if r, mac, err := parseRequest(filePath, values, h); err == nil && version != "" {
			u := r.url("host:1")
			again, mac2, err := parseRequest(u.Path, u.Query(), r.header(mac))
			if err != nil || *again != *r || mac2 != mac {
				t.Errorf("request %+v: parsed again as %+v, %v", r, again, err)
			}
		}
	})
}

// Two different requests have different MACs, also if the same bytes are in other fields.
func TestMACSeparatesFields(t *testing.T) {
	seen := make(map[string]string)
	for _, fields := range [][]string{{"a", "bc"}, {"ab", "c"}, {"abc", ""}, {"", "abc"}, {"abc"}} {
		for _, kind := range []string{"request", "answer"} {
			mac := secret.mac(kind, fields...)
			if other, ok := seen[mac]; ok {
				t.Errorf("%s %q has the MAC of %s", kind, fields, other)
			}
			seen[mac] = kind + strings.Join(fields, "|")
		}
	}
}

// A refusal keeps its error.
func TestMissUnwraps(t *testing.T) {
	if err := error(&miss{broken, errSource}); !errors.Is(err, errSource) {
		t.Error("the cause is lost")
	}
}
