package main

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/lab/browser"
)

// The web page shows what the status has, no name of a file, and says when the daemon does not answer.
func TestWebPage(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs that take long")
	}
	s := newSite(t)
	const hostile = "<img src=x onerror=alert(1)>secret.bin"
	for i := range 20 {
		s.write(fmt.Sprintf("%d%s", i, hostile), 100_000)
	}
	d := serveInForeground(s, "1MiB", "64MiB")
	b := browser.Start(t)
	b.Open("http://" + d.metrics + "/")
	b.Eventually("the page of a mount that nobody has read is shown", `return !document.querySelector("#main").hidden`)
	b.Screenshot("empty")
	for i := range 2 {
		s.epoch(i)
	}
	want := s.closed()
	b.Eval(nil, `document.querySelector("#now").click()`)
	placed := fmt.Sprintf("all 20 files, %s: another epoch reads no content from the source", size(want.Names.Bytes))
	b.Eventually("the page shows "+placed, `return document.querySelector("#placed-more").textContent === arguments[0]`, placed)
	for i, tier := range want.Tiers {
		row := fmt.Sprintf("%s %s of %s (%s) %s %s", tier.Name, size(tier.UsedBytes), size(tier.QuotaBytes), percent(tier.UsedBytes, tier.QuotaBytes), count(tier.Files), tier.Health)
		if got := b.Text(fmt.Sprintf("#tiers tbody tr:nth-child(%d)", i+1)); got != row {
			t.Errorf("tier %d: got %q, want %q", i+1, got, row)
		}
	}
	for i := range want.Epochs {
		if got, name := b.Text(fmt.Sprintf("#epochs tbody tr:nth-child(%d) th", i+1)), epochName(want, i); got != name {
			t.Errorf("epoch %d: got %q, want %q", i, got, name)
		}
	}
	total, local := int64(0), int64(0)
	for level, modes := range want.Opens {
		for _, n := range modes {
			total += n
			if level == want.Tiers[0].Name || level == want.Tiers[1].Name {
				local += n
			}
		}
	}
	if got, hits := b.Text("#hit-more"), percent(local, total)+" of "+count(total)+" since the start"; !strings.HasSuffix(got, hits) {
		t.Errorf("hits: got %q, want %q", got, hits)
	}
	if got, says := b.Text("#facts"), "ready · mode "+want.Mode+" · up "; !strings.HasPrefix(got, says) {
		t.Errorf("got %q, want %q", got, says)
	}
	var page string
	b.Eval(&page, `return fetch("/page.json").then(r => r.text()).then(data => data + document.documentElement.outerHTML)`)
	for _, hidden := range []string{"secret.bin", "onerror", s.source, s.tier(1)} {
		if strings.Contains(page, hidden) {
			t.Errorf("the page has %s", hidden)
		}
	}
	if all := b.Console(); len(all) > 0 {
		t.Errorf("console: %q", all)
	}

	s.check(d.cmd.Process.Signal(unix.SIGSTOP))
	b.Eventually("the stopped daemon is announced", `return document.querySelector("#live").textContent.startsWith("The daemon does not answer.")`)
	s.check(d.cmd.Process.Signal(unix.SIGCONT))
	b.Eventually("the page goes on", `return document.querySelector("#live").textContent === "Updated every 5 s." && document.body.className === ""`)
	s.umount()
	d.wait()
	b.Eventually("the end of the daemon is announced", `return document.querySelector("#live").textContent.startsWith("The daemon cannot be reached. It may have ended. The page shows the state of ")`)
}
