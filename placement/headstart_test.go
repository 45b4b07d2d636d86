package placement

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The latency and the bandwidth of the bucket of these tests.
const (
	linkLatency = 15 * time.Millisecond
	linkRate    = 200e6
)

// alone returns how long a request for some bytes takes if there is no other.
func alone(bytes int) time.Duration {
	return linkLatency + time.Duration(float64(bytes)/linkRate*1e9)
}

// readStart opens a file, reads its first bytes, and closes it.
func (r *rig) readStart(name string) {
	r.t.Helper()
	obj := r.open(name)
	defer obj.Close()
	r.check(readAt(r.ctx, obj, make([]byte, 4096), 0))
}

// The first bytes of a large object come as if there were no other request: the other ranges are
// requested later. Then as many are in flight as the gate admits.
func TestFirstBlockComesAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, b := newLinkedRig(t, linkLatency, linkRate, 32)
		for i := range 3 {
			r.mem.Put(fmt.Sprint("large", i), make([]byte, 200<<20))
		}
		for i, streams := range []int{streamBlocks / 2 / 8, streamBlocks / 8} { // the limit at the start, and the highest one
			name := fmt.Sprint("large", 2*i)
			r.entry(name)
			before := len(b.requests())
			begin := time.Now()
			r.readStart(name)
			if got, want := time.Since(begin), alone(blockSize); got > want*101/100 {
				t.Errorf("%s: the first bytes came after %v, want %v", name, got, want)
			}
			r.settled()
			gets, most := b.requests()[before:], 0
			if gets[0].block != 0 || gets[0].background {
				t.Errorf("%s: the first request is %+v", name, gets[0])
			}
			for _, g := range gets {
				most = max(most, g.beside+1)
			}
			if most < streams || len(gets) != 200/8 {
				t.Errorf("%s: %d requests, at most %d in flight; want %d and %d", name, len(gets), most, 200/8, streams)
			}
		}
	})
}

// A small object that is opened comes as if there were no other request, although its open predicts
// others. These are requested after it, before it has arrived or not much later.
func TestPredictionsComeAfterTheOpenedFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const size = 110_000
		r, b := newLinkedRig(t, linkLatency, linkRate, 32)
		for i := range 40 {
			r.mem.Put(fmt.Sprintf("d/%02d", i), make([]byte, size))
		}
		_, err := r.names.List(r.ctx, r.entry("d"))
		r.check(err)
		for i := range orderHits {
			begin := time.Now()
			r.readStart(fmt.Sprintf("d/%02d", i))
			if got, want := time.Since(begin), alone(size); got > want*101/100 {
				t.Errorf("file %d came after %v, want %v", i, got, want)
			}
		}
		r.settled()
		gets := b.requests()
		opened := gets[orderHits-1]
		if len(gets) < orderHits+minDepth || opened.background {
			t.Fatalf("requests: got %+v", gets)
		}
		for _, g := range gets[orderHits:] {
			if after := g.at.Sub(opened.at); !g.background || after <= 0 || after > alone(size) {
				t.Errorf("a predicted file was requested %v after the opened one: %+v", after, g)
			}
		}
	})
}

// A demand read that hangs holds background requests back for a moment only, and so do readers that
// never rest.
func TestHeadStartsEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 40}, bucket: &drivertest.Bucket{Latency: linkLatency, Length: 8 << 20}})
		r.put("hung", 100_000)
		r.put("other", 20<<20)
		r.from.Add(drivertest.Rule{Op: drivertest.OpStream, Name: "hung", Hang: true})
		begin := time.Now()
		r.touch("hung")
		outcome, err := r.handler.Place(r.ctx, r.entry("other"))
		if took := time.Since(begin); outcome != Placed || took > readStall {
			t.Errorf("got %v, %v after %v", outcome, err, took)
		}
	})
}

// Demand reads share a head start. It ends when all are answered or when it expires, and the next one
// begins at once only if no background request is in flight.
func TestHeadStarts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var ended atomic.Int64
		s := &headStarts{roundTrip: func() time.Duration { return 20 * ms }, over: func() { ended.Add(1) }}
		want := func(what string, holds bool, times int64) {
			t.Helper()
			if synctest.Wait(); s.holds() != holds || ended.Load() != times {
				t.Errorf("%s: held %v, %d have ended; want %v and %d", what, s.holds(), ended.Load(), holds, times)
			}
		}
		first, second := s.begin(blockSize, false), s.begin(blockSize, true)
		first.answered(0, 0)
		want("one of two is answered", true, 0)
		second.answered(0, 0)
		want("both are answered", false, 1)
		first = s.begin(blockSize, false)
		time.Sleep(20*ms - 1)
		want("shortly before the end", true, 1)
		time.Sleep(time.Nanosecond)
		want("at the end", false, 2)
		if s.begin(blockSize, true) != nil {
			t.Error("a head start in the pause")
		}
		second = s.begin(blockSize, false)
		first.answered(blockSize, 2*ms) // of an earlier head start
		want("another one", true, 2)
		second.answered(blockSize, 2*ms)
		want("it is answered", false, 3)
		time.Sleep(time.Second)
		s.begin(blockSize/2, true)
		time.Sleep(2 * ms) // twice the transfer of half a block
		want("half a block", false, 4)
		if s.begin(4096, false) != nil {
			t.Error("a head start for a few bytes")
		}
	})
}
