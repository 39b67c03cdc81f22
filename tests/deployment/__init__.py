"""The deployment as it is deployed: the roles of docker-compose.yml on hosts of their own, behind firewalls."""
