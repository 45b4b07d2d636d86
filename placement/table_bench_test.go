package placement

import (
	"context"
	"fmt"
	"testing"
)

// BenchmarkPlacedRead reads 4 KiB of a placed file in memory, from as many goroutines as there
// are processors.
func BenchmarkPlacedRead(b *testing.B) {
	r := newRig(b, rigOptions{quotas: []int64{1 << 30}})
	ctx := context.Background()
	for i := range 3 {
		name := fmt.Sprint("f", i)
		r.wantFile(name, r.put(name, 1<<20))
	}
	r.settled()
	opened := r.open("f0")
	defer opened.Close()
	stateless, reopened := r.entry("f1"), r.entry("f2")
	for _, c := range []struct {
		name string
		read func(p []byte) (int, error)
	}{
		{"handle", func(p []byte) (int, error) { return opened.ReadAt(ctx, p, 0) }},
		{"stateless", func(p []byte) (int, error) { return r.handler.ReadAt(ctx, stateless, p, 0) }},
		{"open, read and close", func(p []byte) (int, error) {
			obj, err := r.handler.Open(ctx, reopened)
			if err != nil {
				return 0, err
			}
			defer obj.Close()
			return obj.ReadAt(ctx, p, 0)
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				p := make([]byte, 4096)
				for pb.Next() {
					if _, err := c.read(p); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
