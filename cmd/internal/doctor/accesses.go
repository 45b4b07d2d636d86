package doctor

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
)

// A part of the copies that is not read is worth a finding if it is large, and the other part small.
const (
	partUnread = 8 << 20 // bytes that were copied and not read
	partRead   = 0.25    // of the opened files
)

// partly reports on copies of whole files of which readers want a small part. In passthrough, the daemon
// does not see what is read.
func partly(f *Facts) []Finding {
	s := &f.Status
	for _, modes := range s.Opens {
		if modes[string(config.Passthrough)] > 0 {
			return nil
		}
	}
	opened, read := s.Names.OpenedBytes, int64(0)
	for _, n := range s.ReadBytes {
		read += n
	}
	copied := s.Names.OpenedCopied
	if float64(read) >= partRead*float64(opened) || copied-read < partUnread {
		return nil
	}
	severity, now := Warning, ""
	switch {
	case s.OpenHandles > 0:
		severity, now = Note, "; "+files(s.OpenHandles)+" "+isOrAre(s.OpenHandles)+" open now"
	case s.Mode == string(config.Stateless): // the daemon does not know what is open
		severity = Note
	}
	return one(severity, "copies", "If no job reads the rest, split the files, so that what is not read is not copied. `milkweed evict PATH` gives the room of a copy back.", seeSlow,
		"jobs have read %s so far, %.0f%% of the files that they opened (%s), and files are copied as a whole: %s%s",
		size(read), 100*float64(read)/float64(opened), size(opened), size(copied), now)
}

// parts reports on large files of which jobs have read a part so far.
func parts(f *Facts) []Finding {
	n := f.Status.Fills.Lazy
	if n == 0 {
		return nil
	}
	return one(Note, "parts", "None is needed if jobs read no more of them. `milkweed warmup PATH` copies a file as a whole, and `milkweed where FILE` shows what is copied.", seeSlow,
		"jobs read parts of %s above 8 MiB, and only these parts are copied: %s", files(n), size(f.Status.Fills.LazyBytes))
}

// Files that were copied and not opened are worth a finding if they are many, and a large part of all files
// with copies.
const (
	manyUnopened  = 64
	unopenedShare = 0.25
)

// unopened reports on copies that were made ahead, and that no job has opened in a whole epoch. Other nodes
// may read them.
func unopened(f *Facts) []Finding {
	n := &f.Status.Names
	if e, _ := f.lastEpoch(); e == nil || f.Status.Peers != nil {
		return nil
	}
	if n.UnopenedFiles < manyUnopened || float64(n.UnopenedFiles) < unopenedShare*float64(n.CopiedFiles) {
		return nil
	}
	return one(Note, "copies", "With a plan (`milkweed plan`), only its files are copied ahead. `milkweed evict PATH` gives the room of a copy back.", seeSlow,
		"%s of %s with copies were copied ahead, and no job has opened them: %s", humanize.Comma(n.UnopenedFiles), files(n.CopiedFiles), size(n.UnopenedBytes))
}

// recent reports on files that were read while their times did not identify their content, and were
// therefore not copied.
func recent(f *Facts) []Finding {
	s := f.Status.Source
	window := short(time.Duration(s.RacyWindowSeconds * float64(time.Second)))
	what := ""
	switch {
	case s.RacyFiles > 0:
		what = fmt.Sprintf("%s changed less than %s ago: for that time, they are read from the source and not copied", files(s.RacyFiles), window)
	case s.RacySeen > 0:
		what = fmt.Sprintf("%s had changed less than %s before a copy was to be made: until then, reads went to the source",
			plural(s.RacySeen, "version of a file", "versions of files"), window)
	default:
		return nil
	}
	return one(Note, "fresh files", "None is needed for a dataset that does not change. If this machine writes the source itself, or the clocks are equal, set source.clock_skew = \"0s\".", seeNames, "%s", what)
}

// gone reports on a source whose path does not lead to it any more, or to an empty directory.
func gone(f *Facts) []Finding {
	path := paths.Printable(f.Status.Source.Path)
	switch {
	case f.Source.Empty:
		return one(Warning, "source", "Check whether the file system of the dataset is mounted, and whether another directory has taken its path.", seeReads, "%s is empty", path)
	case !f.Source.Gone:
		return nil
	}
	return one(Problem, "source", fmt.Sprintf("Move it back to %s, or unmount, and mount it from its new path.", path), seeReads,
		"%s does not exist any more: it was renamed or removed. Files without a copy are read in the directory that the daemon still holds, if that exists; a new mount fails", path)
}
