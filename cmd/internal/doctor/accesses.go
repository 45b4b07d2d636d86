package doctor

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
)

// A partial read is worth a finding if the unread part is large, and the read part small.
const (
	partUnread = 8 << 20 // bytes that were copied and not read
	partRead   = 0.25    // of the opened files
)

// partly reports on copies of whole files of which readers want a small part. Files that were opened in passthrough,
// whose reads the daemon does not see, do not count.
func partly(f *Facts) []Finding {
	opened, read := f.Status.Usage.DaemonBytes, int64(0)
	for _, n := range f.Status.ReadBytes {
		read += n // of all files: those that count have at most that
	}
	copied := min(opened, f.Status.Placement.PlacedBytes+f.Status.Fills.InFlightBytes)
	if float64(read) >= partRead*float64(opened) || copied-read < partUnread {
		return nil
	}
	return one(Warning, "copies", "If no job reads the rest, split the files, so that what is not read is not copied; `milkweed evict PATH` gives the room of a copy back.", seeSlow,
		"jobs have read %s so far, %.0f%% of the files that they opened (%s), and files are copied as a whole: %s", size(read), 100*float64(read)/float64(opened), size(opened), size(copied))
}

// recent reports on files that were read while their times did not identify their content, and therefore not copied.
func recent(f *Facts) []Finding {
	s := f.Status.Source
	window := time.Duration(s.RacyWindowSeconds * float64(time.Second))
	remedy := "None is needed for a dataset that does not change. If this machine writes the source itself, or the clocks are equal, set source.clock_skew = \"0s\"."
	switch {
	case s.RacyFiles > 0:
		return one(Note, "fresh files", remedy, seeNames, "%s %s opened less than %s after a change, and %s read from the source; copies are made %s after the last change",
			files(s.RacyFiles), wereOrWas(s.RacyFiles), short(window), isOrAre(s.RacyFiles), short(window))
	case s.RacySeen > 0:
		return one(Note, "fresh files", remedy, seeNames, "%s had changed less than %s before: %s could not be copied for that time, and reads went to the source",
			files(s.RacySeen), short(window), theyOrIt(s.RacySeen))
	}
	return nil
}

func theyOrIt(n int64) string {
	if n == 1 {
		return "it"
	}
	return "they"
}

// gone reports on a source whose path does not lead to it any more.
func gone(f *Facts) []Finding {
	if !f.Source.Gone {
		return nil
	}
	path := paths.Printable(f.Status.Source.Path)
	return one(Problem, "source", fmt.Sprintf("Move it back to %s, or unmount, and mount it from its new path.", path), seeReads,
		"%s does not exist any more: it was renamed or removed. Files without a copy are read in the directory that the daemon still holds, if that exists; a new mount fails", path)
}

// keptEpochs is how many epochs that have ended a status has at most.
const keptEpochs = 16

// earlyWaits reports on waits outside of the epochs, such as for names that are looked up before the first open, if they are
// the most of all waits. Rule waits reports on those of an epoch.
func earlyWaits(f *Facts) []Finding {
	s := &f.Status
	if len(s.Epochs) == 0 || len(s.Epochs) >= keptEpochs { // waits of earlier epochs are not known
		return nil
	}
	type key struct{ level, cause string }
	type sum struct {
		waits   int64
		seconds float64
	}
	outside := make(map[key]sum)
	all, epochs, lasted := 0.0, 0.0, 0.0
	for _, w := range s.Waits {
		outside[key{w.Level, w.Cause}] = sum{w.Waits, w.Seconds}
		all += w.Seconds
	}
	for _, e := range s.Epochs {
		lasted += e.Seconds
		for _, w := range e.Waits {
			k := key{w.Level, w.Cause}
			outside[k] = sum{outside[k].waits - w.Waits, outside[k].seconds - w.Seconds}
			epochs += w.Seconds
		}
	}
	var most key
	for k, o := range outside {
		if o.seconds > outside[most].seconds {
			most = k
		}
	}
	w := outside[most]
	if w.waits <= 0 || w.seconds < mostWaits*all || all-epochs < max(1, muchWait*lasted) {
		return nil
	}
	what, remedy := f.cause(most.level, most.cause)
	if most.cause == control.Latency {
		remedy = "Names that are looked up one by one take a request each: list their directories first, as `ls -l` and " + f.command("warmup") +
			" do, many names at a time. The next mount has them saved (mount.metadata_snapshot)."
	}
	return one(Note, "waits", remedy, seeSlow, "readers have waited %s for %s outside of the epochs, as before the first one, %.0f%% of all waits since the mount (%s waits of %s)",
		seconds(w.seconds), what, 100*w.seconds/all, humanize.Comma(w.waits), seconds(w.seconds/float64(w.waits)))
}
