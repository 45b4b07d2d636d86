package page

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/rates"
)

func TestHosts(t *testing.T) {
	h := append(newHosts("Data.Example:9877"), "node1.cluster.example", "node1")
	for header, want := range map[string]bool{
		"localhost": true, "localhost:9877": true, "LOCALHOST.:80": true, "localhost:": true,
		"127.0.0.1": true, "127.0.0.1:9877": true, "10.1.2.3:1": true, "[::1]": true, "[::1]:9877": true, "[fe80::1%eth0]:1": true,
		"data.example:9877": true, "DATA.example.": true, "node1": true, "node1.cluster.example:80": true,

		"": false, ".": false, ":9877": false, "evil.example": false, "evil.example:9877": false, "localhost.evil.example": false,
		"node1.evil.example": false, "127.0.0.1.evil.example": false, "xlocalhost": false, "localhost..": false,
		"localhost:99999": false, "localhost:x": false, "localhost:-1": false, "::1": false, "[::1": false, "::1]": false, "[127.0.0.1]": false,
		"[localhost]": false, "localhost:80:80": false, "evil@localhost": false, "localhost/": false, " localhost": false,
	} {
		if got := h.allow(header); got != want {
			t.Errorf("%q: got %v, want %v", header, got, want)
		}
	}
}

// Without names, only IP addresses are allowed, as another parser finds them.
func FuzzHost(f *testing.F) {
	for _, s := range []string{"localhost:80", "[::1]:1", "a.b.:", "[fe80::1%a]", "::", "[]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		if !hosts.allow(nil, header) {
			return
		}
		if u, err := url.Parse("http://" + header); err == nil { // a zone is no part of a URL
			if _, err := netip.ParseAddr(strings.TrimSuffix(u.Hostname(), ".")); err != nil {
				t.Errorf("%q is allowed; its host is %q", header, u.Hostname())
			}
		}
	})
}

// get requests a path of the page from a daemon.
func get(method, path string, header map[string]string) *httptest.ResponseRecorder {
	d := &controltest.Daemon{MountPoint: "/mnt/imagenet", Peered: true}
	h := Handler("127.0.0.1:9877", d.Status, func(time.Time) []rates.Point { return nil })
	r := httptest.NewRequest(method, "http://localhost:9877"+path, nil)
	for k, v := range header {
		if k == "Host" {
			r.Host = v
		}
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestRequests(t *testing.T) {
	for _, c := range []struct {
		method, path string
		header       map[string]string
		code         int
	}{
		{"GET", "/", nil, http.StatusOK},
		{"HEAD", "/", nil, http.StatusOK},
		{"GET", "/page.json", nil, http.StatusOK},
		{"GET", "/page.json?after=1", map[string]string{"Sec-Fetch-Site": "same-origin"}, http.StatusOK},
		{"GET", "/", map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusOK}, // a link
		{"GET", "/page.json", map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		{"GET", "/page.json", map[string]string{"Sec-Fetch-Site": "same-site"}, http.StatusForbidden}, // another port
		{"GET", "/page.js", map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		{"GET", "/", map[string]string{"Host": "evil.example"}, http.StatusMisdirectedRequest},
		{"GET", "/page.json", map[string]string{"Host": "evil.example"}, http.StatusMisdirectedRequest},
		{"GET", "/page.json?after=-1", nil, http.StatusBadRequest},
		{"GET", "/page.json?after=x", nil, http.StatusBadRequest},
		{"POST", "/page.json", nil, http.StatusMethodNotAllowed},
		{"DELETE", "/", nil, http.StatusMethodNotAllowed},
		{"PUT", "/nothing", nil, http.StatusMethodNotAllowed},
		{"GET", "/nothing", nil, http.StatusNotFound},
		{"GET", "/assets/page.html", nil, http.StatusNotFound},
		{"GET", "/v1/status", nil, http.StatusNotFound},
	} {
		w := get(c.method, c.path, c.header)
		if w.Code != c.code {
			t.Errorf("%s %s %v: got %d, want %d", c.method, c.path, c.header, w.Code, c.code)
		}
		for key, want := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
		} {
			if got := w.Header().Get(key); got != want {
				t.Errorf("%s %s: %s is %q", c.method, c.path, key, got)
			}
		}
		if w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Error("other origins may read it")
		}
	}
	if says := get("GET", "/", map[string]string{"Host": "evil.example"}).Body.String(); !strings.Contains(says, "open it by an IP address") {
		t.Errorf("no remedy: %s", says)
	}
}

// The data have no path but the mount point, whatever the status has.
func TestDataHaveNoPaths(t *testing.T) {
	d := &controltest.Daemon{MountPoint: "/mnt", Bucket: true, Peered: true}
	status := func(ctx context.Context) control.Status {
		s := d.Status(ctx)
		s.ModeReason = "secret"
		s.Source.Path, s.Source.Manifest = "s3://secret?key=secret", "/secret"
		s.Tiers[0].Path, s.Tiers[0].Reason = "/secret", "open /secret/<b>secret</b>.jpg: input/output error"
		s.Tiers[1].Reason = "slow: reads take 2s, those of the source secret"
		s.Tiers[0].PassthroughReason, s.Source.PassthroughReason = "secret", "secret"
		for i := range s.Peers.Nodes {
			s.Peers.Nodes[i].Address = "secret:1"
		}
		s.Scrub.Last.Path = "secret"
		return s
	}
	w := httptest.NewRecorder()
	Handler("", status, func(time.Time) []rates.Point { return nil }).ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1/page.json", nil))
	if got := w.Body.String(); strings.Contains(got, "secret") || !strings.Contains(got, `"reason":"input/output error"`) {
		t.Errorf("got %s", got)
	}
}

func TestReason(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "slow: reads take 2s, those of the source 5.2ms": "slow: reads take 2s, those of the source 5.2ms",
		"write /local/a b.jpg: no space left on device": "no space left on device", "/local/x is odd": "the log has the reason",
	} {
		if got := reason(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// The page sets everything as text, and loads nothing from elsewhere.
func TestAssets(t *testing.T) {
	for _, name := range []string{"page.html", "page.js", "page.css"} {
		content, err := os.ReadFile("assets/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(content), `"http://www.w3.org/2000/svg"`, "")
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "http:", "https:", "@import", " style=", "onclick"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s has %s", name, bad)
			}
		}
	}
}
