package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/apart"
	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/manifest"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// A mismatch is a name that is not as the manifest says.
type mismatch struct {
	Path    string `json:"path"`
	Problem string `json:"problem"`
}

// MarshalJSON implements json.Marshaler.
func (m mismatch) MarshalJSON() ([]byte, error) {
	type plain mismatch
	return paths.Marshal(plain(m))
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *mismatch) UnmarshalJSON(p []byte) error {
	type plain mismatch
	return paths.Unmarshal(p, (*plain)(m))
}

// A comparison is the result of comparing a source, or the tiers, with a manifest.
type comparison struct {
	Manifest     string     `json:"manifest"`
	Files        int64      `json:"files"`         // regular files that were compared
	Bytes        int64      `json:"bytes"`         // of them
	OtherVersion int64      `json:"other_version"` // copies of other versions of the files; 0 for a source
	Differences  []mismatch `json:"differences"`   // the first maxDifferences
	Different    int64      `json:"different"`     // names in all
}

const maxDifferences = 1000

// A comparer makes a comparison.
type comparer struct {
	m       *manifest.Manifest
	display display
	result  comparison
}

func (c *comparer) differs(name, format string, args ...any) {
	c.result.Different++
	if len(c.result.Differences) < maxDifferences {
		c.result.Differences = append(c.result.Differences, mismatch{name, fmt.Sprintf(format, args...)})
	}
}

func (c *comparer) show(read int64) {
	c.display.show(step{text: fmt.Sprintf("%s of %s", count(c.result.Files), files(c.m.Files)), bytes: read, total: c.m.Bytes, state: c.result})
}

// source compares all names of a source. Those for which omitted returns true may be there.
func (c *comparer) source(ctx context.Context, driver drivers.Driver, omitted func(name string) bool) error {
	seen := make(map[string]bool)
	h := &hasher{driver: driver, wants: func(e manifest.Entry) bool {
		want, ok := c.m.Lookup(e.Name)
		return ok && want.IsRegular() && want.Size == e.Size
	}}
	h.onFound = func(e manifest.Entry, err error) error {
		want, ok := c.m.Lookup(e.Name)
		seen[e.Name] = true
		switch {
		case err != nil:
			c.differs(e.Name, "%v", err)
		case !ok && omitted(e.Name):
		case !ok:
			c.differs(e.Name, "it is not in the manifest")
		default:
			c.compare(e, want)
		}
		c.show(h.read.Load())
		return nil
	}
	if err := h.run(ctx); err != nil {
		return err
	}
	for want := range c.m.All() {
		if !seen[want.Name] {
			c.differs(want.Name, "it is missing")
		}
	}
	return nil
}

// compare compares a name that the manifest has.
func (c *comparer) compare(e, want manifest.Entry) {
	switch {
	case e.Mode&typeBits != want.Mode&typeBits:
		c.differs(e.Name, "it is %s, and %s in the manifest", kindOf(e), kindOf(want))
	case e.IsRegular() && e.Size != want.Size:
		c.differs(e.Name, "it has %d bytes, and %d in the manifest", e.Size, want.Size)
	case e.IsRegular() && e.SHA256 != want.SHA256:
		c.differs(e.Name, "its SHA-256 is %x, and %x in the manifest", e.SHA256, want.SHA256)
	case e.Target != want.Target:
		c.differs(e.Name, "it points to %q, and to %q in the manifest", e.Target, want.Target)
	case e.IsRegular():
		c.result.Files++
		c.result.Bytes += e.Size
	}
}

const typeBits = 0o170000 // S_IFMT

func kindOf(e manifest.Entry) string {
	switch {
	case e.IsRegular():
		return "a file"
	case e.IsDir():
		return "a directory"
	case e.IsSymlink():
		return "a symbolic link"
	}
	return "a special file"
}

// tier compares the copies in the folder of a dataset, or of a generation, in a tier. A copy of another size,
// or of another time and content, is one of another version of the file.
func (c *comparer) tier(ctx context.Context, tier string, folder drivers.Driver) error {
	h := &hasher{driver: folder}
	h.wants = func(e manifest.Entry) bool {
		want, ok := c.m.Lookup(e.Name)
		return ok && want.IsRegular() && want.Size == e.Size
	}
	h.onFound = func(e manifest.Entry, err error) error {
		want, ok := c.m.Lookup(e.Name)
		isTimeOf := e.Mtime.Equal(want.Mtime) || e.Mtime.Equal(drivers.VersionedTime(want.Mtime, string(want.SHA256[:])))
		switch name := tier + ":" + e.Name; {
		case err != nil:
			c.differs(name, "%v", err)
		case !e.IsRegular():
		case !ok, want.Size != e.Size, want.SHA256 != e.SHA256 && !isTimeOf:
			c.result.OtherVersion++
		case want.SHA256 != e.SHA256:
			c.differs(name, "its SHA-256 is %x, and %x in the manifest", e.SHA256, want.SHA256)
		default:
			c.result.Files++
			c.result.Bytes += e.Size
		}
		c.show(h.read.Load())
		return nil
	}
	return h.run(ctx)
}

// tiers compares the copies in all tiers: those of a generation, if that is not "".
func (c *comparer) tiers(ctx context.Context, cfg *config.Config, generation string) error {
	for _, t := range cfg.Tiers {
		folder, err := posix.OpenDir(posix.Copies(t.Path, config.DatasetID(cfg.Source.Name()), generation))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return &exit.Error{Code: exit.Tier, Err: fmt.Errorf("tier %s: %w", t.Name, err)}
		}
		err = c.tier(ctx, t.Name, folder)
		folder.Close()
		if err != nil {
			return &exit.Error{Code: exit.Tier, Err: fmt.Errorf("tier %s: %w", t.Name, err)}
		}
	}
	return nil
}

// write writes the differences, and a summary on the last line.
func (r comparison) write(w io.Writer) error {
	for _, d := range r.Differences {
		fmt.Fprintf(w, "%s: %s\n", text(d.Path), d.Problem)
	}
	if n := r.Different - int64(len(r.Differences)); n > 0 {
		fmt.Fprintf(w, "and %s more\n", count(n))
	}
	line := fmt.Sprintf("%s (%s) as in %s", files(r.Files), size(r.Bytes), text(r.Manifest))
	if r.OtherVersion > 0 {
		line += fmt.Sprintf("; %s of other versions", plural(r.OtherVersion, "copy", "copies"))
	}
	if r.Different > 0 {
		line += fmt.Sprintf("; %s not", plural(r.Different, "name is", "names are"))
	}
	_, err := fmt.Fprintln(w, line)
	return err
}

// compareWithManifest is the command check with --manifest.
func compareWithManifest(c *cobra.Command, cfg *config.Config, inTiers, asJSON bool) error {
	ctx := c.Context()
	place, _ := placeOf(cfg.Source)
	shown, p, err := openShown(ctx, cfg, nil)
	if err != nil {
		return check.SourceError(cfg.Source, err)
	}
	defer shown.Close()
	m, err := place.load(ctx, shown)
	if err != nil {
		return err
	}
	if m.Unsealed {
		if err := check.Write(c.ErrOrStderr(), check.Manifest(place.String(), m, nil)); err != nil {
			return err
		}
	}
	cmp := &comparer{m: m, display: newDisplay(c.ErrOrStderr(), asJSON), result: comparison{Manifest: place.String(), Differences: []mismatch{}}}
	flags := manifestFlags{output: place.path, omit: place.inside}
	omitted := flags.omitted(p.shown())
	apart.Opened()
	if inTiers {
		err = cmp.tiers(ctx, cfg, p.generation)
	} else {
		err = cmp.source(ctx, shown, omitted)
	}
	cmp.display.end()
	if err != nil {
		return err
	}
	if asJSON {
		err = printJSON(c.OutOrStdout(), cmp.result)
	} else {
		err = cmp.result.write(c.OutOrStdout())
	}
	if err == nil && cmp.result.Different > 0 {
		err = &exit.Error{
			Code:   exit.Incomplete,
			Err:    fmt.Errorf("%s not as in the manifest", plural(cmp.result.Different, "name is", "names are")),
			Remedy: cmp.remedy(inTiers),
		}
	}
	return err
}

func (c *comparer) remedy(inTiers bool) string {
	if inTiers {
		return "`milkweed scrub` removes copies that their disk has changed; `milkweed generations drop` and `milkweed refresh --prune` remove others."
	}
	return "Restore the files, or write a new manifest with `milkweed manifest`."
}
