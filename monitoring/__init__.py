"""What an operator watches allm with, made from code: the dashboard, the alerts, and the pages that explain both."""
