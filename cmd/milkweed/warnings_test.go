package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
)

// The last different warnings are kept, with their number and without names of files.
func TestRecentWarnings(t *testing.T) {
	l, err := openLog(config.Log{Level: slog.LevelError, Format: "text"}, true, new(bytes.Buffer))
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	l.detach()
	l.Info("mounted")
	l.Warn("source not readable", "path", "secret.jpg", "err", errors.New("secret"))
	l.With("tier", "ssd").Warn("tier is not healthy", "err", errors.New("open secret: input/output error"))
	l.Error("copy is corrupt", "path", "secret", "tier", "ram")
	l.Warn("source not readable", "path", "secret2.jpg")
	got := ""
	for _, w := range l.recent.list() {
		got += fmt.Sprintf("%s %s %q %d\n", w.Level, w.Message, w.Tier, w.Count)
		if w.Time.IsZero() {
			t.Errorf("%q has no time", w.Message)
		}
	}
	want := `WARN tier is not healthy "ssd" 1
ERROR copy is corrupt "ram" 1
WARN source not readable "" 2
`
	if got != want || strings.Contains(got, "secret") {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for i := range 2 * maxWarnings {
		l.Warn(fmt.Sprint("warning ", i))
	}
	all := l.recent.list()
	if len(all) != maxWarnings || all[0].Message != fmt.Sprint("warning ", maxWarnings) || all[maxWarnings-1].Count != 1 {
		t.Errorf("got %d warnings, the first %+v", len(all), all[0])
	}
}
