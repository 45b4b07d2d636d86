package metrics

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// statusTimeout bounds how long a scrape waits for the status.
const statusTimeout = 5 * time.Second

// prefix begins the name of each metric.
const prefix = "milkweed_"

// A collector makes metrics from a status. The tags of the fields of control.Status name the
// metrics.
type collector struct {
	status func(context.Context) control.Status
	all    map[string]metric // by name, without the prefix
}

// A metric is the description of a metric.
type metric struct {
	help   string
	labels []string
	desc   *prometheus.Desc
	kind   prometheus.ValueType
}

// New returns a collector that calls status at each scrape.
func New(status func(context.Context) control.Status) prometheus.Collector {
	c := &collector{status: status, all: make(map[string]metric)}
	for _, f := range control.Schema() {
		if f.Metric != "" {
			c.declare(f)
		}
	}
	for name, m := range c.all {
		m.desc = prometheus.NewDesc(prefix+name, m.help, m.labels, nil)
		c.all[name] = m
	}
	return c
}

// declare adds the metric of f, or the labels of f to its metric.
func (c *collector) declare(f control.Field) {
	m, ok := c.all[f.Metric]
	if !ok {
		m = metric{help: f.Help, kind: prometheus.GaugeValue}
		if f.Family != "" {
			m.help = f.Family
		}
		if strings.HasSuffix(f.Metric, "_total") {
			m.kind = prometheus.CounterValue
		}
	}
	if _, info := f.Value.Interface().(string); info || !ok {
		for _, l := range f.Labels {
			m.labels = append(m.labels, l.Name)
		}
	}
	c.all[f.Metric] = m
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.all {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	s := c.status(ctx)
	infos := make(map[string][]string) // the values of labels that are strings of the status
	control.Walk(&s, func(f control.Field) {
		if f.Metric == "" {
			return
		}
		if v, ok := f.Value.Interface().(string); ok {
			infos[f.Metric] = append(infos[f.Metric], strings.ToValidUTF8(v, "\uFFFD"))
			return
		}
		c.all[f.Metric].collect(ch, f)
	})
	for name, labels := range infos {
		ch <- prometheus.MustNewConstMetric(c.all[name].desc, prometheus.GaugeValue, 1, labels...)
	}
}

// collect sends the samples of one field.
func (m metric) collect(ch chan<- prometheus.Metric, f control.Field) {
	labels := make([]string, len(f.Labels))
	for i, l := range f.Labels {
		labels[i] = l.Value
	}
	switch v := f.Value.Interface().(type) {
	case control.Histogram:
		buckets := make(map[float64]uint64, len(v.LeSeconds))
		for i, le := range v.LeSeconds {
			buckets[le] = v.Counts[i]
		}
		ch <- prometheus.MustNewConstHistogram(m.desc, v.Count, v.SumSeconds, buckets, labels...)
	case control.Health:
		for _, state := range control.Healths {
			if v != "" { // the health is known
				labels[len(labels)-1] = string(state)
				ch <- prometheus.MustNewConstMetric(m.desc, m.kind, number(v == state), labels...)
			}
		}
	case bool:
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, number(v), labels...)
	case int64:
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, float64(v), labels...)
	case float64:
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
	default:
		panic(fmt.Sprintf("%s: no metric is made from a value of type %T", f.Path, v))
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
