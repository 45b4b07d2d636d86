package metadata

import (
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// An entry is retired while its copy is being committed, and the commit ends after a tier was
// examined for the next version. That version is Unverified.
func TestCommitOfRetiredEntry(t *testing.T) {
	inBubble(t, time.Minute, func(t *testing.T, w *world) {
		w.source.Put("d/f", []byte("content"))
		old := w.get(t, "d/f")
		if !old.Claim() {
			t.Fatal("claim")
		}
		// placement: commit() has seen that old is not stale, and is in copy.Commit
		time.Sleep(time.Minute)
		w.get(t, "d")
		w.source.Put("d/f", []byte("new"))
		w.Changed(old) // a reader finds that the source has another version
		w.down[2].Add(drivertest.Rule{Op: drivertest.OpStat, Name: "d/f", Delay: 100 * time.Millisecond})
		var wg sync.WaitGroup
		wg.Go(func() { w.get(t, "d/f") })
		time.Sleep(50 * time.Millisecond) // tier 1 has replied, tier 2 has not
		w.tier[1].PutAt(old.CopyName(), []byte("content"), old.Info().Mtime)
		w.LeftCopy(old) // as the placement handler does
		old.Publish(1)
		wg.Wait()
		wantVerification(t, w, old)
	})
}
