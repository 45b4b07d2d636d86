// Package metrics is the status of a daemon as Prometheus reads it. Nothing is
// counted here: each scrape asks for a control.Status and turns it into metrics,
// so that `milkweed status` and a dashboard cannot disagree.
package metrics

import (
	"context"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
)

// Handler answers scrapes with what status returns at that time, and with the
// numbers of the process and of the Go runtime.
func Handler(status func(context.Context) control.Status) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(
		New(status),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Listen opens the address that [metrics] listen says.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", address)
}

// Serve answers on l, at /metrics, until ctx is done, and then returns nil. It
// closes l.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", h)
	return control.ServeHTTP(ctx, l, mux, log)
}
