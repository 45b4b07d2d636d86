package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/posix"
	milkweed "github.com/milkweedfs/milkweed/fs"
)

// sized returns files with these sizes.
func sized(sizes ...int64) []drivers.Info {
	var files []drivers.Info
	for _, s := range sizes {
		files = append(files, drivers.Info{Size: s})
	}
	return files
}

func TestChooseMode(t *testing.T) {
	const why = "passthrough needs CAP_SYS_ADMIN"
	small, large := sized(100<<10, 120<<10), sized(1<<10, 8<<20)
	for _, tt := range []struct {
		configured  config.Mode
		passthrough bool
		sample      []drivers.Info
		mode        config.Mode
		reason      string // a part of it
	}{
		{config.Auto, true, small, config.Stateless, "files are 110 KiB on average (2 sampled), and below 512 KiB stateless is faster"},
		{config.Auto, true, large, config.Passthrough, "files are 4.0 MiB on average (2 sampled), and from 512 KiB on passthrough is faster"},
		{config.Auto, true, sized(statelessBelow), config.Passthrough, "512 KiB on average"},
		{config.Auto, true, sized(statelessBelow - 1), config.Stateless, "on average"},
		{config.Auto, true, sized(1<<62, 1<<62, 1<<62), config.Passthrough, "4.0 EiB on average"},
		{config.Auto, true, nil, config.Stateless, "no file was found"},
		{config.Auto, false, large, config.Stateless, "passthrough does not work: " + why},
		{config.Passthrough, true, small, config.Passthrough, "it is configured"},
		{config.Passthrough, false, large, config.Cached, "passthrough is configured, but does not work: " + why},
		{config.Stateless, true, large, config.Stateless, "it is configured"},
		{config.Cached, true, large, config.Cached, "it is configured"},
	} {
		mode, reason := ChooseMode(tt.configured, tt.passthrough, why, tt.sample)
		if mode != tt.mode || !strings.Contains(reason, tt.reason) {
			t.Errorf("%s, passthrough %v, %d files: got %s, %q; want %s, %q",
				tt.configured, tt.passthrough, len(tt.sample), mode, reason, tt.mode, tt.reason)
		}
	}
}

// A dataset is a source whose files have one size.
type dataset struct {
	names []string
	size  int64
}

func (d dataset) Sample(_ context.Context, n int) (drivers.Sample, error) {
	found := make(map[string]drivers.Info)
	for _, name := range d.names[:min(n, len(d.names))] {
		found[name] = drivers.Info{Size: d.size}
	}
	return drivers.Sample{Files: found}, nil
}

// twoTiers returns a world with the tiers ssd and ram, and a source with files of one
// size. Results has the result of the probe of a file, by the name of its folder.
func twoTiers(t *testing.T, size int64, results map[string]error) (*world, dataset) {
	w := newWorld(t)
	w.mkdir("ssd/new", 0o700)
	w.mkdir("ram", 0o700)
	w.config.Tiers = append(w.config.Tiers, config.Tier{Name: "ram", Path: w.path("ram")})
	w.probe = func(files []*os.File) []error {
		var errs []error
		for _, f := range files {
			path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
			w.must(err)
			errs = append(errs, results[filepath.Base(filepath.Dir(path))])
		}
		return errs
	}
	return w, dataset{[]string{"missing", "a"}, size}
}

// modeInputs has the result of the probe of the source and of each tier.
func TestModeInputs(t *testing.T) {
	w, source := twoTiers(t, 5, map[string]error{"new": milkweed.ErrStacked, "source": milkweed.ErrKernel})
	before := w.files()
	l := w.modeInputs(t.Context(), w.config, source, w.probeTiers(w.config.Tiers))
	if l.source != milkweed.ErrKernel || !slices.Equal(l.tiers, []error{milkweed.ErrStacked, nil}) || len(l.sample) != 2 {
		t.Errorf("got %+v", l)
	}
	if after := w.files(); before != after {
		t.Errorf("files differ: before %s, after %s", before, after)
	}

	w.config.Source.Operations = 1
	if l := w.modeInputs(t.Context(), w.config, source, nil); l.source != errRateLimited {
		t.Errorf("a source with a rate limit: got %v, want %v", l.source, errRateLimited)
	}
	w.config.Mount.Mode = config.Cached
	w.probe = func([]*os.File) []error {
		t.Error("passthrough was probed although the configured mode excludes it")
		return nil
	}
	w.modeInputs(t.Context(), w.config, source, nil)
}

// A file without a name can be created without O_TMPFILE.
func TestUnlinkedFile(t *testing.T) {
	dir := t.TempDir()
	f, err := unlinkedFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("files remain: %v, %v", left, err)
	}
}

func TestDecide(t *testing.T) {
	w := newWorld(t)
	w.config.Tiers[0].Path = "/proc/no" // where no file can be created
	for mode, want := range map[config.Mode]Service{
		config.Stateless:   {Mode: config.Stateless, Reason: "it is configured"},
		config.Cached:      {Mode: config.Cached, Reason: "it is configured"},
		config.Auto:        {Mode: config.Stateless, Reason: "passthrough does not work: cannot create a file in /proc: "},
		config.Passthrough: {Mode: config.Cached, Reason: "passthrough is configured, but does not work: cannot create a file in /proc: "},
	} {
		w.config.Mount.Mode = mode
		got := Decide(t.Context(), w.config, dataset{}, w.probeTiers(w.config.Tiers))
		if got.Mode != want.Mode || !strings.HasPrefix(got.Reason, want.Reason) {
			t.Errorf("%s: got %+v, want %+v", mode, got, want)
		}
		if got.Source == nil {
			t.Errorf("%s: got %+v, want no passthrough for the source", mode, got)
		}
	}
}

func TestPreview(t *testing.T) {
	const small, large = 100 << 10, 10 << 20
	everywhere := func(err error) map[string]error { return map[string]error{"new": err, "ram": err, "source": err} }
	for _, tt := range []struct {
		name    string
		mode    config.Mode
		size    int64
		results map[string]error
		want    []string // status, name and the start of the detail
	}{
		{"large", config.Auto, large, nil, []string{
			"ok mode: passthrough: files are 10 MiB",
			"ok passthrough, tier ssd: the kernel can read files there directly",
			"ok passthrough, tier ram: the kernel can read files there directly",
			"ok passthrough, source: the kernel can read files there directly",
		}},
		{"one tier", config.Auto, large, map[string]error{"new": milkweed.ErrStacked}, []string{
			"ok mode: passthrough: ",
			"warning passthrough, tier ssd: the file is on too many",
			"ok passthrough, tier ram: ",
			"ok passthrough, source: ",
		}},
		{"small", config.Auto, small, everywhere(milkweed.ErrPrivilege), []string{
			"ok mode: stateless: passthrough does not work: passthrough needs CAP_SYS_ADMIN",
			"ok passthrough, tier ssd: passthrough needs CAP_SYS_ADMIN; the mode would not be passthrough in any case",
			"ok passthrough, tier ram: ",
			"ok passthrough, source: ",
		}},
		{"large without privilege", config.Auto, large, everywhere(milkweed.ErrPrivilege), []string{
			"ok mode: stateless: ",
			"warning passthrough, tier ssd: passthrough needs CAP_SYS_ADMIN",
			"warning passthrough, tier ram: passthrough needs CAP_SYS_ADMIN",
			"warning passthrough, source: passthrough needs CAP_SYS_ADMIN",
		}},
		{"configured on an old kernel", config.Passthrough, small, everywhere(milkweed.ErrKernel), []string{
			"warning mode: cached: passthrough is configured, but does not work",
			"warning passthrough, tier ssd: passthrough needs Linux 6.9",
			"warning passthrough, tier ram: ",
			"warning passthrough, source: ",
		}},
		{"no device", config.Auto, large, everywhere(unix.EACCES), []string{
			"ok mode: stateless: passthrough does not work: permission denied",
			"warning passthrough, tier ssd: permission denied",
			"warning passthrough, tier ram: ",
			"warning passthrough, source: ",
		}},
		{"unexpected error", config.Passthrough, small, map[string]error{"ram": unix.EIO}, []string{
			"ok mode: passthrough: it is configured",
			"ok passthrough, tier ssd: ",
			"warning passthrough, tier ram: input/output error",
			"ok passthrough, source: ",
		}},
		{"cached", config.Cached, small, everywhere(milkweed.ErrPrivilege), []string{"ok mode: cached: it is configured"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, source := twoTiers(t, tt.size, tt.results)
			w.config.Mount.Mode = tt.mode
			got := w.inspectMode(t.Context(), w.config, source)
			tt.want = append(tt.want, "ok times: they have a granularity of ")
			if len(got) != len(tt.want) {
				t.Fatalf("got %+v, want %q", got, tt.want)
			}
			for i, f := range got {
				if line := fmt.Sprintf("%s %s: %s", f.Status, f.Name, f.Detail); !strings.HasPrefix(line, tt.want[i]) {
					t.Errorf("got  %s\nwant %s", line, tt.want[i])
				}
				if (f.Status == OK) != (f.Remedy == "") {
					t.Errorf("%+v: want a remedy unless the status is ok", f)
				}
			}
		})
	}
}

// An empty source, a source with a rate limit, and a bucket cause no warning.
func TestPreviewSourceNotProbed(t *testing.T) {
	w, _ := twoTiers(t, 0, nil)
	for _, tt := range []struct {
		source config.Source
		want   error
	}{
		{config.Source{Path: w.path("source")}, errNoFile},
		{config.Source{Path: w.path("source"), Bandwidth: 1}, errRateLimited},
		{config.Source{URL: "s3://bucket"}, errBucket},
	} {
		w.config.Source = tt.source
		got := w.inspectMode(t.Context(), w.config, dataset{})
		if last := got[len(got)-2]; last.Status != OK || last.Detail != tt.want.Error() {
			t.Errorf("got %+v, want %v", last, tt.want)
		}
	}
}

// Preview with the kernel and the user of the test.
func TestPreviewHere(t *testing.T) {
	w := newWorld(t)
	before := w.files()
	got := w.preview(t.Context(), w.config, w.openSource)
	if len(got) != 4 {
		t.Fatalf("got %+v, want the mode, a tier, the source and the times", got)
	}
	if got[0].Name != "mode" || !strings.HasPrefix(got[0].Detail, "stateless: ") {
		t.Errorf("got %+v, want stateless for a file of one byte", got[0])
	}
	for _, f := range got {
		t.Logf("%+v", f)
	}
	if after := w.files(); before != after {
		t.Errorf("files differ: before %s, after %s", before, after)
	}
}

func (w *world) openSource() (Source, config.Source, error) {
	d, err := posix.OpenDir(w.config.Source.Path)
	return d, w.config.Source, err
}

func TestPreviewWithoutSource(t *testing.T) {
	w := newWorld(t)
	w.config.Source.Path = w.path("no")
	got := w.preview(t.Context(), w.config, w.openSource)
	want := []Finding{{Name: "mode", Status: Warning, Detail: "not known: no such file or directory", Remedy: "See the finding of the source."}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Preview of a tier that hangs ends after the time-out.
func TestPreviewHung(t *testing.T) {
	w := newWorld(t)
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	w.timeout = 10 * time.Millisecond
	w.stat = func(string) (os.FileInfo, error) { <-hang; return nil, errors.New("hung") }
	got := w.preview(t.Context(), w.config, w.openSource)
	if len(got) != 1 || got[0].Status != Warning || got[0].Detail != "the source or a tier did not respond within 10ms" {
		t.Errorf("got %+v", got)
	}
}
