package check

import (
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
		throughALink bool // the source is named by a link to it
	}{
		"none":             {},
		"inside":           {links: map[string]string{"a": "b", "d/e/f": "../../a", "self": ".", "dangling": "none"}},
		"of a snapshot":    {links: map[string]string{"a": "../../blobs/1", "d/b": "../../../blobs/2", "c": "a"}, detail: "2 of 3 sampled symbolic links lead out of the mount, such as ", inRemedy: "Mount $base/hub/model, which has the targets, too, and use snapshots/abc in that mount.", notInRemedy: "absolute"},
		"named by a link":  {links: map[string]string{"a": "../../blobs/1"}, throughALink: true, detail: "1 of 1", inRemedy: "Mount $base/hub/model,"},
		"back again":       {links: map[string]string{"a": "../abc/b"}, detail: "1 of 1 sampled symbolic links lead out of the mount, such as a -> ../abc/b:", inRemedy: "Mount $base/hub/model/snapshots, which has the targets, too, and use abc in"},
		"similar name":     {links: map[string]string{"a": "../abcd/b"}, detail: "1 of 1", inRemedy: "Mount $base/hub/model/snapshots,"},
		"absolute, inside": {links: map[string]string{"a": "$base/" + at + "/b"}, detail: "1 of 1", inRemedy: "Make the absolute links relative.", notInRemedy: "Mount"},
		"absolute by link": {links: map[string]string{"a": "$base/link/b"}, throughALink: true, detail: "1 of 1", inRemedy: "Make the absolute links relative.", notInRemedy: "Mount"},
		"absolute":         {links: map[string]string{"a": "$base/hub/blobs/1"}, detail: "1 of 1", inRemedy: "relative. Mount $base/hub, which has the targets, too, and use model/snapshots/abc "},
		"into the mount":   {links: map[string]string{"a": "$base/mnt/b", "b": "$base/mnt"}},
		"both":             {links: map[string]string{"a": "../../blobs/1", "b": "/etc/hostname"}, detail: "2 of 2", inRemedy: "relative. Mount $base/hub/model,"},
		"anywhere":         {links: map[string]string{"a": strings.Repeat("../", 40) + "etc/hostname"}, detail: "1 of 1", inRemedy: "copy them into the dataset"},
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
			detail, remedy := FindLinks(t.Context(), d, root, base+"/mnt", sample.Links).Advice()
			fill := func(s string) string { return strings.ReplaceAll(s, "$base", base) }
			if !strings.HasPrefix(detail, tt.detail) || (detail == "") != (tt.detail == "") || (remedy == "") != (detail == "") ||
				!strings.Contains(remedy, fill(tt.inRemedy)) || tt.notInRemedy != "" && strings.Contains(remedy, tt.notInRemedy) {
				t.Errorf("got %q, %q", detail, remedy)
			}
		})
	}
}
