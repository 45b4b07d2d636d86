package check

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/posix"
)

// Links that lead out of a mount are counted by their text, and the advice names the directory that has all targets.
func TestLinks(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const at = "hub/model/snapshots/abc" // the source, as in the cache of Hugging Face
	for name, tt := range map[string]struct {
		links        map[string]string // targets by name; $base is base
		detail       string            // the beginning
		inRemedy     string
		notInRemedy  string
		throughALink bool   // the source is named by a link to it
		point        string // below base; "": "/mnt"
	}{
		"none":             {},
		"inside":           {links: map[string]string{"a": "b", "d/e/f": "../../a", "self": ".", "dangling": "none"}},
		"of a snapshot":    {links: map[string]string{"a": "../../blobs/1", "d/b": "../../../blobs/2", "c": "a"}, detail: "2 of 3 sampled symbolic links lead out of the mount, such as ", inRemedy: "Mount $base/hub/model, to which they lead, and use snapshots/abc in that mount.", notInRemedy: "absolute"},
		"named by a link":  {links: map[string]string{"a": "../../blobs/1"}, throughALink: true, detail: "1 of 1", inRemedy: "Mount $base/hub/model,"},
		"back again":       {links: map[string]string{"a": "../abc/b"}, detail: "1 of 1 sampled symbolic links lead out of the mount, such as a -> ../abc/b:", inRemedy: "Mount $base/hub/model/snapshots, to which they lead, and use abc in"},
		"similar name":     {links: map[string]string{"a": "../abcd/b"}, detail: "1 of 1", inRemedy: "Mount $base/hub/model/snapshots,"},
		"absolute, inside": {links: map[string]string{"a": "$base/" + at + "/b"}, detail: "1 of 1", inRemedy: "Make absolute links relative.", notInRemedy: "Mount"},
		"absolute by link": {links: map[string]string{"a": "$base/link/b"}, throughALink: true, detail: "1 of 1", inRemedy: "Make absolute links relative.", notInRemedy: "Mount"},
		"absolute":         {links: map[string]string{"a": "$base/hub/blobs/1"}, detail: "1 of 1", inRemedy: "relative. Mount $base/hub, to which they lead, and use model/snapshots/abc "},
		"into the mount":   {links: map[string]string{"a": "$base/mnt/b", "b": "$base/mnt"}},
		"both":             {links: map[string]string{"a": "../../blobs/1", "b": "/etc/hostname"}, detail: "2 of 2", inRemedy: "relative. Mount $base/hub/model,"},
		"anywhere":         {links: map[string]string{"a": strings.Repeat("../", 40) + "etc/hostname"}, detail: "1 of 1", inRemedy: "replace the links"},
		"clean paths":      {links: map[string]string{"a": "$base/mnt/../secret", "b": "$base//mnt/./b"}, detail: "1 of 2 sampled symbolic links lead out of the mount, such as a -> "},
		"mounted likewise": {links: map[string]string{"a": "../mnt/b"}, point: "/hub/model/snapshots/mnt"},
		"hostile names":    {links: map[string]string{"a\n\x1b": "../\x1b[31m"}, detail: `1 of 1 sampled symbolic links lead out of the mount, such as "a\n\x1b" -> "../\x1b[31m":`},
	} {
		t.Run(name, func(t *testing.T) {
			base := filepath.Join(base, strings.ReplaceAll(name, " ", ""))
			source := filepath.Join(base, at)
			if err := errors.Join(os.MkdirAll(source, 0o755), os.Symlink(source, base+"/link")); err != nil {
				t.Fatal(err)
			}
			for name, target := range tt.links {
				path := filepath.Join(source, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(strings.ReplaceAll(target, "$base", base), path)); err != nil {
					t.Fatal(err)
				}
			}
			root := source
			if tt.throughALink {
				root = base + "/link"
			}
			d, err := posix.OpenDir(root)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			sample, err := d.Sample(t.Context(), 10)
			if err != nil || len(sample.Links) != len(tt.links) {
				t.Fatalf("sampled %q, %v", sample.Links, err)
			}
			detail, remedy := FindLinks(t.Context(), d, root, base+cmp.Or(tt.point, "/mnt"), sample.Links).Advice()
			fill := func(s string) string { return strings.ReplaceAll(s, "$base", base) }
			if !strings.HasPrefix(detail, tt.detail) || (detail == "") != (tt.detail == "") || (remedy == "") != (detail == "") ||
				!strings.Contains(remedy, fill(tt.inRemedy)) || tt.notInRemedy != "" && strings.Contains(remedy, tt.notInRemedy) {
				t.Errorf("got %q, %q", detail, remedy)
			}
		})
	}
}

// Links of a source that is no directory, such as a bucket with a manifest, or that is "/", are judged by their text.
func TestLinksWithoutDirectory(t *testing.T) {
	for root, want := range map[string]string{"": "Make absolute links relative. Mount a directory", "/": "Make absolute links relative."} {
		l := FindLinks(t.Context(), linksTo{"a/in": "../b", "a/out": "../../b", "abs": "/b", "up": ".."}, root, "/mnt", []string{"a/in", "a/out", "abs", "up"})
		if _, remedy := l.Advice(); l.Leaving != 3 || l.Seen != 4 || !strings.HasPrefix(remedy, want) {
			t.Errorf("%q: got %+v, %s", root, l, remedy)
		}
	}
}

// linksTo is a source of symbolic links, which has their targets by name.
type linksTo map[string]string

func (l linksTo) Readlink(_ context.Context, name string) (string, error) { return l[name], nil }
