package peertest

import (
	"fmt"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/dataset"
	"github.com/milkweedfs/milkweed/cmd/internal/simpfs"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// volumes are files of the size of unet3d's samples, divided by 96.
func volumes() (content, error) {
	var files []dataset.File
	for i := range 224 {
		files = append(files, dataset.File{Name: fmt.Sprintf("volumes/%04d.npz", i), Size: 900_000 + int64(i)*7919*101%1_250_000})
	}
	return write("volumes", files)
}

// BenchmarkExchange compares the utilisation of emulated accelerators on 4 nodes, in turn: shares of which
// nothing moves, of which 0.3 moves before each epoch, global shuffling through peers, and global
// shuffling from the source. Each has an epoch to fill the tiers and three that count; from the source
// all count. The batches and samples are those of the workloads of `milkweed bench`; the compute times
// are longer, because a machine with 2 cores has all 4 nodes. The source has about half of the bandwidth
// that busy accelerators need, and the link of a node 0.7 of what the accelerator of the node needs.
// Global shuffling takes long, and has three runs at most.
func BenchmarkExchange(b *testing.B) {
	type workload struct {
		name    string
		content func() (content, error)
		batch   int
		compute string // seconds of a step
		source  int64  // bytes per second
		link    int64  // bytes per second
	}
	var (
		workloads = drivertest.Size([]workload{
			{name: "resnet50", content: many, batch: 20, compute: "0.25", source: 14e6, link: 5e6},
			{name: "unet3d", content: volumes, batch: 7, compute: "0.6", source: 35e6, link: 12e6},
		}, []workload{
			{name: "resnet50", content: few, batch: 5, compute: "0.01", source: 100e6, link: 50e6},
		})
		nodes   = drivertest.Size(4, 2)
		counted = drivertest.Size(3, 1) // epochs of each side, after the one that fills the tiers
	)
	for _, w := range workloads {
		b.Run(w.name, func(b *testing.B) {
			c := newCluster(b, shape{nodes: nodes, content: w.content, link: w.link, source: simpfs.Speed{BytesPerSecond: w.source}})
			utilisation := func(epochs, count int, args ...string) float64 {
				var jobs []*shuffler
				for _, n := range c.nodes {
					jobs = append(jobs, n.shuffle(append(args, "--batch", fmt.Sprint(w.batch), "--compute", w.compute)...))
				}
				for _, j := range jobs {
					j.wantReady()
				}
				sum := 0.0
				for epoch := range epochs {
					for _, j := range jobs {
						j.begin(epoch)
					}
					for _, j := range jobs {
						if u := j.want().Utilisation; epoch >= epochs-count {
							sum += u
						}
					}
				}
				for _, j := range jobs {
					j.kill()
				}
				return sum / float64(count*len(jobs))
			}
			sides := []struct {
				name  string
				run   func() float64
				value []float64
			}{
				{name: "q=0", run: func() float64 { return utilisation(1+counted, counted, "--q", "0") }},
				{name: "q=0.3", run: func() float64 { return utilisation(1+counted, counted, "--q", "0.3") }},
				{name: "global", run: func() float64 { return utilisation(1+counted, counted) }},
			}
			var source []float64
			for round := 0; b.Loop(); round++ {
				for i := range sides {
					if sides[i].name == "global" && round >= 3 {
						continue
					}
					c.empty()
					c.mount(c.peers()...)
					sides[i].value = append(sides[i].value, sides[i].run())
					c.umount()
				}
				if round < 3 {
					source = append(source, c.fromSource(utilisation))
				}
			}
			b.ReportMetric(0, "ns/op")
			var ratios []float64
			for i, u := range sides[1].value {
				ratios = append(ratios, u/sides[0].value[i])
			}
			b.ReportMetric(median(ratios), "q=0.3/q=0")
			for _, s := range sides {
				b.ReportMetric(median(s.value), s.name)
			}
			b.ReportMetric(median(source), "source")
		})
	}
}

// fromSource returns the utilisation of jobs that read the source itself.
func (c *cluster) fromSource(utilisation func(epochs, count int, args ...string) float64) float64 {
	for _, n := range c.nodes {
		defer func(point string) { n.point = point }(n.point)
		n.point = c.source
	}
	return utilisation(1, 1)
}
