package page_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/lab/browser"
	"github.com/milkweedfs/milkweed/cmd/internal/page"
	"github.com/milkweedfs/milkweed/cmd/internal/rates"
	"github.com/milkweedfs/milkweed/placement"
)

// busy returns the status of a daemon after half an hour of work on a dataset of a million files, and
// its history.
func busy() (control.Status, []rates.Point) {
	d := &controltest.Daemon{MountPoint: "/mnt/imagenet", Peered: true}
	before, after := d.Status(context.Background()), d.Status(context.Background())
	after.Names = control.Names{Entries: 1_010_000, Coverage: placement.Coverage{Files: 1_000_000, Bytes: 150 << 30}}
	before.Names = after.Names
	var points []rates.Point
	end := time.Now()
	for i := range 360 {
		step := func(from, to, most int64) int64 { return most * min(max(int64(i)-from, 0), to-from) / (to - from) }
		next := after
		next.Opens = map[string]map[string]int64{
			"ram": {"cached": 100, "passthrough": 800 + step(60, 360, 400_000)}, "ssd": {"cached": step(90, 360, 300_000)},
			"source": {"cached": 100 + step(0, 150, 90_000)}, "fill": {"cached": step(0, 200, 60_000)},
		}
		next.OpenedBytes = map[string]map[string]int64{"ram": {"passthrough": step(60, 360, 60<<30)}}
		next.Tiers = slices.Clone(after.Tiers)
		next.Tiers[0].UsedBytes, next.Tiers[0].Files = step(0, 120, 400<<20), step(0, 120, 200_000)
		next.Tiers[1].UsedBytes, next.Tiers[1].Files = step(80, 340, 700<<20), step(80, 340, 400_000)
		next.ReadBytes = map[string]int64{"ssd": step(90, 360, 45<<30), "source": step(0, 150, 9<<30), "fill": step(0, 150, 5<<30)}
		next.Names.CopiedFiles = next.Tiers[0].Files + next.Tiers[1].Files
		next.Tiers[1].Bytes = step(90, 360, 45<<30)
		next.Source.Bytes, next.Source.Reads = step(0, 150, 14<<30), step(0, 150, 200_000)
		next.Source.Stats = step(0, 40, 90_000)
		next.Waits = slices.Clone(after.Waits)
		next.Waits[0].Seconds, next.Waits[1].Seconds = float64(step(0, 150, 6000)), float64(step(0, 200, 2000))
		next.Fills.InFlight, next.Fills.Queued = 64-step(0, 200, 62), 500-step(0, 200, 493)
		at := end.Add(time.Duration(i-359) * rates.Interval)
		if p, ok := rates.Between(&before, &next, at.Add(-rates.Interval), at); ok && i > 0 {
			points = append(points, p)
		}
		before = next
	}
	before.Epochs = slices.Clone(before.Epochs)
	for i := range 3 {
		before.Epochs[i].Opens = []control.EpochOpens{{Level: "source", Opens: 800 - 300*int64(i), Read: 80 << 20}, {Level: "fill", Opens: 100, Read: 10 << 20}, {Level: "ram", Opens: 300 * int64(i), Read: int64(i) * 30 << 20}}
	}
	before.Tiers[1].Reason = "open /local/milkweed/secret.jpg: no space left on device"
	return before, points
}

// A served is a page whose daemon a test can change.
type served struct {
	url    string
	status atomic.Pointer[control.Status]
	points atomic.Pointer[[]rates.Point]
	delay  atomic.Int64 // of the data, in ns
}

func serve(t testing.TB) *served {
	t.Helper()
	s := &served{}
	status, points := busy()
	s.status.Store(&status)
	s.points.Store(&points)
	h := page.Handler("127.0.0.1:0", func(context.Context) control.Status { return *s.status.Load() }, func(after time.Time) []rates.Point {
		all := *s.points.Load()
		i := slices.IndexFunc(all, func(p rates.Point) bool { return p.Time.After(after) })
		if i < 0 {
			return nil
		}
		return all[i:]
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/page.json" {
			select {
			case <-time.After(time.Duration(s.delay.Load())):
			case <-r.Context().Done():
			}
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

const drawn = `return !document.querySelector("#main").hidden && document.querySelectorAll(".chart > svg > *").length > 30`

// The page can be read in both colour schemes, on a phone and on a desktop, with no more than its own
// files, and axe-core finds nothing.
func TestPage(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Chromium")
	}
	s := serve(t)
	b := browser.Start(t)
	for _, scheme := range []string{"light", "dark"} {
		for name, width := range map[string]int{"phone": 360, "desktop": 1280} {
			b.Scheme(scheme)
			b.Resize(width, 800)
			b.Open(s.url)
			b.Eventually("the page is drawn", drawn)
			b.Screenshot(scheme + "-" + name)
			var overflow string
			b.Eval(&overflow, `const w = document.documentElement; return w.scrollWidth > innerWidth || innerWidth != arguments[0] ? w.scrollWidth + " of " + innerWidth : ""`, width)
			if overflow != "" {
				t.Errorf("%s, %s: the page is as wide as %s", scheme, name, overflow)
			}
			for _, v := range b.Accessibility() {
				t.Errorf("%s, %s: %v", scheme, name, v)
			}
		}
	}
	if all := b.Console(); len(all) > 0 {
		t.Errorf("console: %q", all)
	}
	own, _ := url.Parse(s.url)
	requested := b.Requests()
	for _, r := range requested {
		if u, err := url.Parse(r); err != nil || u.Host != own.Host {
			t.Errorf("the page requested %s", r)
		}
	}
	if len(requested) == 0 {
		t.Error("no request was recorded")
	}
}

// The page shows the numbers of the status, and no name of a file.
func TestPageShowsTheStatus(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Chromium")
	}
	s := serve(t)
	b := browser.Start(t)
	b.Open(s.url)
	b.Eventually("the page is drawn", drawn)
	for selector, want := range map[string]string{
		"h1":                            "Milkweed /mnt/imagenet on ",
		"#facts":                        "ready · mode passthrough · up 1 h 2 min · version 1.2.3 · dataset imagenet-0123456789ab",
		"#problems":                     "Tier ssd is down: no space left on device. 1 of 2 other nodes are up.",
		"#placed-more":                  "600,000 of 1,000,000 files, 150 GiB",
		"#tiers tbody tr:nth-child(1)":  "ram 400 MiB of 400 MiB (100%) 200,000 healthy",
		"#peers tbody tr:nth-child(2)":  "node3 down 6.0 MiB 0 B 1",
		"#epochs tbody tr:nth-child(4)": "6 ",
		"#epochs tbody tr:nth-child(3)": "mixed ",
		"#warnings tbody":               "WARN tier is not healthy ssd 2",
	} {
		if got := b.Text(selector); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", selector, got, want)
		}
	}
	if text := b.Text("body"); strings.Contains(text, "secret") {
		t.Error("a name of a file is on the page")
	}
}

// All controls can be reached and used by the keyboard.
func TestPageByKeyboard(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Chromium")
	}
	s := serve(t)
	b := browser.Start(t)
	b.Resize(360, 800)
	b.Open(s.url)
	b.Eventually("the page is drawn", drawn)
	var controls []string
	b.Eval(&controls, `const all = [...document.querySelectorAll("a, button, input, summary, [tabindex='0']")].filter(e => e.checkVisibility());
		return all.map((e, i) => e.dataset.n = String(i))`)
	var reached []string
	for range controls {
		b.Press("Tab", 9)
		var n string
		b.Eval(&n, `return document.activeElement.dataset.n || document.activeElement.tagName`)
		reached = append(reached, n)
	}
	if !slices.Equal(reached, controls) || len(controls) < 10 {
		t.Errorf("Tab reached %q of %q", reached, controls)
	}
	b.Eval(nil, `document.querySelector("#cursor").focus()`)
	b.Press("Home", 36)
	b.Eventually("the slider shows an earlier time", `return document.querySelector("#cursor").value === "0" && document.querySelector("#filling-legend th:nth-child(2)").textContent.includes(":")`)
	b.Eval(nil, `document.querySelector("summary").focus()`)
	b.Press(" ", 32)
	b.Eventually("the numbers of each minute are shown", `return document.querySelectorAll("#filling-minutes tbody tr").length >= 30`)
}

// The page shows when its daemon is slow, does not answer, was restarted or has ended.
func TestPageWithoutAnswers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Chromium")
	}
	s := serve(t)
	b := browser.Start(t)
	s.delay.Store(int64(time.Second))
	b.Open(s.url)
	b.Eventually("the page waits", `return document.querySelector("#live").textContent === "Waiting for the daemon."`)
	b.Eventually("the page is drawn", drawn)
	s.delay.Store(0)
	restarted, none := *s.status.Load(), []rates.Point{}
	restarted.Since = time.Now()
	s.status.Store(&restarted)
	s.points.Store(&none)
	b.Eval(nil, `document.querySelector("#now").click()`)
	b.Eventually("the restart is announced, and the old points are gone",
		`return document.querySelector("#live").textContent.startsWith("The daemon was started again.") && document.querySelector("#filling > svg").getAttribute("aria-label").includes("no data yet")`)
	b.Eval(nil, `document.querySelector("#pause").click()`)
	b.Eventually("the pause is announced", `return document.querySelector("#live").textContent.startsWith("Updates are paused.")`)
	b.Eval(nil, `document.querySelector("#pause").click()`)
	b.Eventually("the pause ends", `return document.querySelector("#live").textContent.includes("Updated every 5 s.")`)
	s.delay.Store(int64(time.Minute))
	b.Eventually("the silence is announced", `return document.querySelector("#live").textContent.startsWith("The daemon does not answer. The page shows the state of ") && document.body.className === "stale"`)
	b.Screenshot("stopped")
	for _, v := range b.Accessibility() {
		t.Errorf("without an answer: %v", v)
	}
}

// The size of the data does not depend on the number of files.
func TestPageOfAMillionFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("has a million files")
	}
	s := serve(t)
	resp, err := http.Get(s.url + "/page.json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var state page.State
	var raw json.RawMessage
	if err := json.NewDecoder(resp.Body).Decode(&raw); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &state); err != nil {
		t.Fatal(err)
	}
	if len(raw) > 512<<10 || state.KnownFiles != 1_000_000 || len(state.Points) != 359 {
		t.Errorf("%d bytes, %d files, %d points", len(raw), state.KnownFiles, len(state.Points))
	}
	for _, hidden := range []string{"secret", "/local", "/lustre", "10.0.0."} {
		if strings.Contains(string(raw), hidden) {
			t.Errorf("%s is in the data", hidden)
		}
	}
	resp, err = http.Get(fmt.Sprintf("%s/page.json?after=%d", s.url, state.Points[357].Time.UnixMilli()))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil || len(state.Points) != 1 {
		t.Errorf("%d points after the last but one, %v", len(state.Points), err)
	}
	t.Logf("%d bytes at first", len(raw))
}
